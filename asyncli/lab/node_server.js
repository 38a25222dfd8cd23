// The server of the lab's programs on Node: heldServer(ADDRESS, PORT, BACKLOG, IDLE_S, PEM) has the
// server, not yet listening, and how to have it listen.
//
// It keeps idle connections: by default Node closes them after 5 s, and those without a request
// after 60 s.
"use strict";
const fs = require("fs");

module.exports = (address, port, backlog, idle, pem) => {
  const answer = (_request, response) => response.end("ok\n");
  const both = pem ? fs.readFileSync(pem) : null;
  const server = pem
    ? require("https").createServer({ cert: both, key: both }, answer)
    : require("http").createServer(answer);
  server.keepAliveTimeout = idle * 1000;
  server.headersTimeout = 0;
  server.requestTimeout = 0;
  server.on("error", (error) => {
    console.error(error.message);
    process.exit(1);
  });
  const listen = () => {
    const place = { host: address, port: Number(port), backlog: Number(backlog) };
    server.listen(place, () => console.log("ready"));
  };
  return { server, listen };
};
