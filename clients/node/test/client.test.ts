/** Against a live server named by PAGEWIRE_TARGET that answers the ids 1, 2, 3 with "known" and counts for ever otherwise. */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { Client, PagewireError, status, type GenerateResponse } from "../src/index.js";

const target = process.env["PAGEWIRE_TARGET"];
assert(target, "PAGEWIRE_TARGET must name a server");
const client = new Client(target);
after(() => client.close());

const KNOWN = { tokenIds: { ids: [1, 2, 3] } };
const ENDLESS = { tokenIds: { ids: [9, 9] }, stop: { maxTokens: 100_000 } };

function failsWith(code: status): (error: unknown) => boolean {
  return (error) => error instanceof PagewireError && error.code === code;
}

test("a whole answer equals its stream, which ends with one summary", async () => {
  const once = await client.generate(KNOWN);
  assert.equal(once.outputs?.[0]?.text, "known");
  const events: GenerateResponse[] = [];
  for await (const event of client.stream(KNOWN)) events.push(event);
  assert.equal(events.map((event) => event.delta?.text ?? "").join(""), "known");
  assert.deepEqual(events.filter((event) => event.event === "summary"), [events.at(-1)]);
  assert.equal(events.at(-1)?.summary?.usage?.promptTokens, 3);
});

test("leaving the loop cancels the request", async () => {
  let requestId = "";
  let deltas = 0;
  for await (const event of client.stream(ENDLESS)) {
    requestId ||= event.requestId ?? "";
    if (event.event === "delta" && ++deltas === 3) break;
  }
  assert.equal(deltas, 3);
  for (;;) {
    const { state } = await client.get(requestId);
    if (state === "REQUEST_STATE_ENDED") break;
  }
});

test("a signal ends the call", async () => {
  const control = new AbortController();
  await assert.rejects(async () => {
    for await (const _ of client.stream(ENDLESS, { signal: control.signal })) control.abort();
  }, failsWith(status.CANCELLED));
});

test("the deadline of the call is the request's", async () => {
  await assert.rejects(client.generate(ENDLESS, { timeoutMs: 200 }), failsWith(status.DEADLINE_EXCEEDED));
});

test("all wrong fields are named", async () => {
  const wrong = { ...KNOWN, sampling: { temperature: -1, topP: 2 } };
  await assert.rejects(client.generate(wrong), (error: unknown) => {
    assert(error instanceof PagewireError);
    assert.equal(error.code, status.INVALID_ARGUMENT);
    assert.deepEqual(error.violations.map(({ field }) => field).sort(), ["sampling.temperature", "sampling.top_p"]);
    return true;
  });
});

test("an unknown model is not found, with a reason", async () => {
  await assert.rejects(client.generate({ ...KNOWN, model: "nobody" }), (error: unknown) => {
    assert(error instanceof PagewireError);
    assert.equal(error.code, status.NOT_FOUND);
    assert.notEqual(error.reason, "");
    return true;
  });
});

test("models and tokens", async () => {
  const [model] = await client.listModels();
  assert((model?.maxModelLen ?? 0) > 0);
  assert((await client.tokenize("Hi")).length > 0);
});
