// The program behind asyncli.lab.libraries.LabGobwas:
// gobwas ADDRESS PORT BACKLOG IDLE_S PEM DEFLATE METRICS_PORT
//
// For many idle connections as the author of gobwas/ws describes ("A Million WebSockets and Go"): the upgrade allocates nothing, and
// an idle connection waits in an epoll set without a goroutine or a buffer. One that can be read is taken out of the set
// (EPOLLONESHOT) until a goroutine has answered a frame. Go takes the listeners' queue from net.core.somaxconn.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"asyncli/lab/metrics"

	"github.com/gobwas/ws"
)

const (
	watched = syscall.EPOLLIN | syscall.EPOLLRDHUP
	oneShot = 1 << 30 // EPOLLONESHOT, which package syscall lacks on some architectures
)

var (
	set  int
	held sync.Map // by descriptor
)

func watch(operation, descriptor int) error {
	event := syscall.EpollEvent{Events: watched | oneShot, Fd: int32(descriptor)}
	return syscall.EpollCtl(set, operation, descriptor, &event)
}

func upgrade(conn net.Conn) {
	if _, err := ws.Upgrade(conn); err != nil {
		conn.Close()
		return
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err == nil {
		raw.Control(func(descriptor uintptr) {
			held.Store(int(descriptor), conn)
			err = watch(syscall.EPOLL_CTL_ADD, int(descriptor))
		})
	}
	if err != nil {
		conn.Close()
	}
}

// A frame is answered as it comes: a ping with a pong, a part of a message with the same part.
func answer(conn net.Conn) error {
	header, err := ws.ReadHeader(conn)
	if err != nil {
		return err
	}
	if header.Length > 1<<20 {
		return io.ErrShortBuffer
	}
	payload := make([]byte, header.Length)
	if _, err = io.ReadFull(conn, payload); err != nil {
		return err
	}
	ws.Cipher(payload, header.Mask, 0)
	switch header.OpCode {
	case ws.OpPing:
		return ws.WriteFrame(conn, ws.NewPongFrame(payload))
	case ws.OpPong:
		return nil
	case ws.OpClose:
		ws.WriteFrame(conn, ws.NewCloseFrame(payload))
		return io.EOF
	}
	return ws.WriteFrame(conn, ws.NewFrame(header.OpCode, header.Fin, payload))
}

func wake(descriptor int) {
	found, there := held.Load(descriptor)
	if !there {
		return
	}
	conn := found.(net.Conn)
	if answer(conn) != nil || watch(syscall.EPOLL_CTL_MOD, descriptor) != nil {
		held.Delete(descriptor)
		conn.Close()
	}
}

func wait() {
	events := make([]syscall.EpollEvent, 256)
	for {
		ready, err := syscall.EpollWait(set, events, -1)
		if err != nil && err != syscall.EINTR {
			fail(err)
		}
		for at := 0; at < ready; at++ {
			go wake(int(events[at].Fd))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func main() {
	var err error
	if set, err = syscall.EpollCreate1(0); err != nil {
		fail(err)
	}
	if err = metrics.Serve(os.Args[7]); err != nil {
		fail(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(os.Args[1], os.Args[2]))
	if err != nil {
		fail(err)
	}
	go wait()
	fmt.Println("ready")
	for {
		conn, err := listener.Accept()
		if err != nil {
			fail(err)
		}
		go upgrade(conn)
	}
}
