// The program behind asyncli.lab.libraries.LabNodeWs: node node_ws.js PACKAGE ADDRESS PORT BACKLOG IDLE_S PEM DEFLATE
//
// Set up for many idle connections as the documentation of ws and Node advises: no permessage-deflate unless DEFLATE is given (ws: "significant
// overhead in terms of performance and memory consumption"), no list of clients, and idle HTTP connections are kept (by default Node closes them
// after 5 s, and those without a request after 60 s).
"use strict";
const fs = require("fs");
const [packaged, address, port, backlog, idle, pem, deflate] = process.argv.slice(2);
const { WebSocketServer } = require(packaged);

const answer = (_request, response) => response.end("ok\n");
const both = pem ? fs.readFileSync(pem) : null;
const server = pem ? require("https").createServer({ cert: both, key: both }, answer) : require("http").createServer(answer);
server.keepAliveTimeout = idle * 1000;
server.headersTimeout = 0;
server.requestTimeout = 0;
new WebSocketServer({ server, perMessageDeflate: Boolean(deflate), clientTracking: false }).on("connection", (held) => {
  held.on("message", (data, binary) => held.send(data, { binary }));
  held.on("error", () => held.terminate());
});
server.on("error", (error) => {
  console.error(error.message);
  process.exit(1);
});
server.listen({ host: address, port: Number(port), backlog: Number(backlog) }, () => console.log("ready"));
