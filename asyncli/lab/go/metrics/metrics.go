// Package metrics serves what a lab server reports of itself: /metrics of client_golang, and
// /debug/pprof, both as their documentation shows, with their default settings.
package metrics

import (
	"net"
	"net/http"
	_ "net/http/pprof" // adds its pages to http.DefaultServeMux

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Serve listens on this port of 127.0.0.1, and answers in goroutines of its own.
func Serve(port string) error {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return err
	}
	http.Handle("/metrics", promhttp.Handler())
	go http.Serve(listener, nil)
	return nil
}
