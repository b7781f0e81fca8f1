// A proxy that adds the bearer token to every request, because the conformance suite cannot send
// one. Usage: node proxy.mjs TARGET TOKEN; prints its own address.
import http from "node:http";

const [target, token] = process.argv.slice(2);
const { hostname, port, pathname, search } = new URL(target);

const server = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: `Bearer ${token}` };
  const path = pathname + search;
  const onward = http.request({ hostname, port, path, method: request.method, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    response.flushHeaders();
    answer.pipe(response);
  });
  onward.on("error", () => response.destroy());
  // Propagate a disconnect of the client, which is how it cancels a call.
  response.on("close", () => onward.destroy());
  request.pipe(onward);
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/mcp`));
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
