// The program behind asyncli.lab.libraries.LabGorilla:
// gorilla ADDRESS PORT BACKLOG IDLE_S PEM DEFLATE METRICS_PORT
//
// For many idle connections as the documentation of gorilla/websocket says: buffers for writing come from a pool ("a modest volume of
// writes across a large number of connections"), those for reading are small, and the handler returns, so that net/http's buffers are
// freed (examples/bufferpool). Go takes the listeners' queue from net.core.somaxconn.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"asyncli/lab/metrics"

	"github.com/gorilla/websocket"
)

var upgrader = websocket.Upgrader{ReadBufferSize: 1024, WriteBufferSize: 1024, WriteBufferPool: &sync.Pool{}}

func echo(held *websocket.Conn) {
	defer held.Close()
	for {
		kind, message, err := held.ReadMessage()
		if err != nil || held.WriteMessage(kind, message) != nil {
			return
		}
	}
}

func answer(response http.ResponseWriter, request *http.Request) {
	if !websocket.IsWebSocketUpgrade(request) {
		fmt.Fprintln(response, "ok")
		return
	}
	if held, err := upgrader.Upgrade(response, request, nil); err == nil {
		go echo(held)
	}
}

func serve(server *http.Server, place, pem string) error {
	listener, err := net.Listen("tcp", place)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if pem == "" {
		return server.Serve(listener)
	}
	return server.ServeTLS(listener, pem, pem)
}

func main() {
	address, port, idle, pem := os.Args[1], os.Args[2], os.Args[4], os.Args[5]
	seconds, _ := strconv.Atoi(idle)
	server := http.Server{Handler: http.HandlerFunc(answer), IdleTimeout: time.Duration(seconds) * time.Second}
	err := metrics.Serve(os.Args[7])
	if err == nil {
		err = serve(&server, net.JoinHostPort(address, port), pem)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
