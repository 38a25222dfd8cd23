// The program behind asyncli.lab.libraries.LabGoHttp:
// go-http ADDRESS PORT BACKLOG IDLE_S PEM DEFLATE METRICS_PORT
//
// net/http as its documentation shows: a goroutine and two buffers for each connection. Only its
// timeout of idle connections is set. Go takes the listeners' queue from net.core.somaxconn.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"asyncli/lab/metrics"
)

func answer(response http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(response, "ok")
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
	address, port, idle, pem, metricsPort := os.Args[1], os.Args[2], os.Args[4], os.Args[5], os.Args[7]
	seconds, _ := strconv.Atoi(idle)
	server := http.Server{
		Handler:     http.HandlerFunc(answer),
		IdleTimeout: time.Duration(seconds) * time.Second,
	}
	err := metrics.Serve(metricsPort)
	if err == nil {
		err = serve(&server, net.JoinHostPort(address, port), pem)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
