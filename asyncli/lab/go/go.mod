module asyncli/lab

go 1.20

require (
	github.com/gobwas/ws v1.4.0
	github.com/gorilla/websocket v1.5.3
)

require (
	github.com/gobwas/httphead v0.1.0 // indirect
	github.com/gobwas/pool v0.2.1 // indirect
)
