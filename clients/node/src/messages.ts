/** The messages of pagewire.v1 that this client names; every other field of the protos can be set as well, in camelCase. */

export interface GenerateRequest {
  requestId?: string;
  model?: string;
  text?: string;
  tokenIds?: { ids: number[] };
  chat?: { messages: ChatMessage[] };
  sampling?: { temperature?: number; topP?: number; topK?: number; minP?: number; seed?: number | string; [field: string]: unknown };
  stop?: { maxTokens?: number; minTokens?: number; stop?: string[]; stopTokenIds?: number[]; ignoreEos?: boolean; [field: string]: unknown };
  output?: { n?: number; logprobs?: number; text?: boolean; tokenIds?: boolean; progressEvents?: boolean; [field: string]: unknown };
  scheduling?: { priority?: number; cacheSalt?: string; timeLimitMs?: number; resumeGraceMs?: number; [field: string]: unknown };
  structured?: Record<string, unknown>;
  [field: string]: unknown;
}

export interface ChatMessage {
  role: string;
  content: string;
}

export interface Usage {
  promptTokens?: number;
  cachedTokens?: number;
  outputTokens?: number;
  recomputedTokens?: number;
}

export interface Summary {
  usage?: Usage;
  timings?: Record<string, number>;
  seed?: string;
  workerId?: string;
}

/** One message of a stream; `event` names the field that is set. Exactly one `summary` comes, last. */
export interface GenerateResponse {
  requestId?: string;
  event?: "queued" | "admitted" | "prefill" | "preempted" | "heartbeat" | "delta" | "finished" | "summary";
  delta?: { index?: number; text?: string; tokenIds?: number[] };
  finished?: { index?: number; finishReason?: string; stopString?: string; stopTokenId?: number };
  summary?: Summary;
}

export interface Output {
  index?: number;
  text?: string;
  tokenIds?: number[];
  finishReason?: string;
}

export interface GenerateOnceResponse {
  requestId?: string;
  outputs?: Output[];
  summary?: Summary;
}

export interface Model {
  name?: string;
  maxModelLen?: number;
  vocabSize?: number;
  dtype?: string;
  quantization?: string;
}
