// The program behind asyncli.lab.libraries.LabNodeWs:
// node node_ws.js WS PROM_CLIENT ADDRESS PORT BACKLOG IDLE_S PEM DEFLATE METRICS_PORT
//
// Set up for many idle connections as the documentation of ws advises: no permessage-deflate unless
// DEFLATE is given (ws: "significant overhead in terms of performance and memory consumption"), and
// no list of clients. PROM_CLIENT "": it has no page of metrics.
"use strict";
const heldServer = require("./node_server.js");
const [ws, promClient, address, port, backlog, idle, pem, deflate, metricsPort] =
  process.argv.slice(2);
const { WebSocketServer } = require(ws);

const { server, listen } = heldServer(address, port, backlog, idle, pem);
const options = { server, perMessageDeflate: Boolean(deflate), clientTracking: false };
new WebSocketServer(options).on("connection", (held) => {
  held.on("message", (data, binary) => held.send(data, { binary }));
  held.on("error", () => held.terminate());
});
if (promClient) {
  require("./node_metrics.js")(promClient, metricsPort, listen);
} else {
  listen();
}
