// The program behind asyncli.lab.libraries.LabNodeHttp:
// node node_http.js PROM_CLIENT ADDRESS PORT BACKLOG IDLE_S PEM DEFLATE METRICS_PORT
"use strict";
const heldServer = require("./node_server.js");
const serveMetrics = require("./node_metrics.js");
const [promClient, address, port, backlog, idle, pem, _deflate, metricsPort] =
  process.argv.slice(2);

const { listen } = heldServer(address, port, backlog, idle, pem);
serveMetrics(promClient, metricsPort, listen);
