// The page of metrics of the lab's servers on Node: serveMetrics(PROM_CLIENT, PORT, LISTENS)
//
// http://127.0.0.1:PORT/metrics has prom-client's default metrics. They are collected from the
// first request on: before it the server runs as one without prom-client does.
"use strict";
const http = require("http");

module.exports = (promClient, port, listens) => {
  const { collectDefaultMetrics, register } = require(promClient);
  let isCollecting = false;
  const page = http.createServer(async (request, response) => {
    if (request.url !== "/metrics") {
      response.writeHead(404).end();
      return;
    }
    if (!isCollecting) {
      collectDefaultMetrics();
      isCollecting = true;
    }
    const text = await register.metrics();
    response.writeHead(200, { "Content-Type": register.contentType }).end(text);
  });
  page.keepAliveTimeout = 3600 * 1000;
  page.on("error", (error) => {
    console.error(error.message);
    process.exit(1);
  });
  page.listen({ host: "127.0.0.1", port: Number(port) }, listens);
};
