// Load by k6 (k6/net/grpc): streams of `Generate`, each read to its summary.
//
//   k6 run -e TARGET=127.0.0.1:50051 -e STREAMS=64 -e SECONDS=30 -e TOKENS=32 benchmarks/load/generate.js
//
// TOKEN shows a bearer token. Prompts differ in their last token, so that all share what a system prompt would be.

import { check } from "k6";
import { Counter, Trend } from "k6/metrics";
import { Client, Stream } from "k6/net/grpc";

const target = __ENV.TARGET || "127.0.0.1:50051";
const tokens = Number(__ENV.TOKENS || 32);
const shared = Array.from({ length: 64 }, (_, index) => 100 + (index % 100));

export const options = {
  scenarios: {
    streams: { executor: "constant-vus", vus: Number(__ENV.STREAMS || 64), duration: `${__ENV.SECONDS || 30}s`, gracefulStop: "30s" },
  },
  thresholds: { checks: ["rate==1"] },
};

const outputTokens = new Counter("output_tokens");
const firstToken = new Trend("time_to_first_token", true);
const whole = new Trend("request_time", true);

const client = new Client();
client.load(["../../protos", "../../protos/third_party"], "pagewire/v1/generation.proto");
let isConnected = false;

export default function () {
  if (!isConnected) {
    client.connect(target, { plaintext: true });
    isConnected = true;
  }
  const metadata = __ENV.TOKEN ? { authorization: `Bearer ${__ENV.TOKEN}` } : {};
  const stream = new Stream(client, "pagewire.v1.GenerationService/Generate", { metadata });
  const started = Date.now();
  let first = 0;
  let used = null;
  stream.on("data", (event) => {
    if (event.delta && first === 0) {
      first = Date.now();
      firstToken.add(first - started);
    }
    if (event.summary) used = event.summary.usage;
  });
  const close = (failure) => {
    whole.add(Date.now() - started);
    check(used, { "ended with its summary": (found) => found !== null && !failure });
    if (used) outputTokens.add(Number(used.outputTokens || 0));
  };
  stream.on("error", () => close(true));
  stream.on("end", () => used && close(false));
  const ids = shared.concat([100 + ((__VU * 7919 + __ITER) % 100)]);
  stream.write({ tokenIds: { ids }, stop: { maxTokens: tokens, ignoreEos: true }, output: { text: true } });
  stream.end();
}
