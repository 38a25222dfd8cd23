// One of two workers of bench/server_counts.py, which share a port by SO_REUSEPORT:
// one-of-two PORT METRICS_PORT
//
// Each answers at PORT, and has pages of its own at METRICS_PORT: /metrics of client_golang, and
// /debug/vars of expvar, which does not tell how many descriptors are open.
package main

import (
	"context"
	_ "expvar" // adds its page to http.DefaultServeMux
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"

	"asyncli/lab/metrics"
)

// SO_REUSEPORT of Linux, which package syscall does not have on all architectures.
const reusePort = 0xf

func share(_, _ string, socket syscall.RawConn) error {
	var failed error
	err := socket.Control(func(descriptor uintptr) {
		failed = syscall.SetsockoptInt(int(descriptor), syscall.SOL_SOCKET, reusePort, 1)
	})
	if err != nil {
		return err
	}
	return failed
}

func serve(port, metricsPort string) error {
	if err := metrics.Serve(metricsPort); err != nil {
		return err
	}
	config := net.ListenConfig{Control: share}
	place := net.JoinHostPort("127.0.0.1", port)
	listener, err := config.Listen(context.Background(), "tcp", place)
	if err != nil {
		return err
	}
	answer := func(response http.ResponseWriter, _ *http.Request) { fmt.Fprintln(response, "ok") }
	return http.Serve(listener, http.HandlerFunc(answer))
}

func main() {
	fmt.Fprintln(os.Stderr, serve(os.Args[1], os.Args[2]))
	os.Exit(1)
}
