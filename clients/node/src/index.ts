/**
 * A client of Pagewire.
 *
 *     const client = new Client("localhost:50051");
 *     for await (const event of client.stream({ text: "Once upon a time", stop: { maxTokens: 40 } }))
 *       process.stdout.write(event.delta?.text ?? "");
 */

import { readFileSync } from "node:fs";
import { ChannelCredentials, credentials, Metadata, type CallOptions, type ClientReadableStream, type Client as GrpcClient } from "@grpc/grpc-js";
import { errorOf } from "./errors.js";
import type { GenerateOnceResponse, GenerateRequest, GenerateResponse, Model, Usage } from "./messages.js";
import { root } from "./protos.js";

export { PagewireError, type FieldViolation } from "./errors.js";
export type * from "./messages.js";
export { status } from "@grpc/grpc-js";

export interface Options {
  /** Bearer token; sent as it is, so use TLS beyond this machine. */
  token?: string;
  /** TLS: true for the system's authorities, or files. */
  tls?: boolean | { ca?: string; cert?: string; key?: string };
}

export interface Call {
  /** The whole call's limit: the request's deadline. */
  timeoutMs?: number;
  /** Ends the call, and with it the request. */
  signal?: AbortSignal;
}

export class Client {
  private readonly generation: GrpcClient;
  private readonly models: GrpcClient;
  private readonly metadata = new Metadata();

  constructor(target = "127.0.0.1:50051", options: Options = {}) {
    const channel = channelCredentials(options.tls);
    const settings = { "grpc.max_receive_message_length": 16 << 20 };
    this.generation = new (root().service("GenerationService"))(target, channel, settings);
    this.models = new (root().service("ModelService"))(target, channel, settings);
    if (options.token !== undefined) this.metadata.set("authorization", `Bearer ${options.token}`);
  }

  /** Runs a request; returns when all its outputs have ended. Throws PagewireError. */
  generate(request: GenerateRequest, call: Call = {}): Promise<GenerateOnceResponse> {
    return this.unary(this.generation, "generateOnce", { request }, call);
  }

  /** Runs a request and gives its events as they come. Leaving the loop early cancels the request. Throws PagewireError. */
  async *stream(request: GenerateRequest, call: Call = {}): AsyncGenerator<GenerateResponse, void, void> {
    const open = (this.generation as any).generate as (r: object, m: Metadata, o: CallOptions) => ClientReadableStream<GenerateResponse>;
    const stream = open.call(this.generation, request, this.metadata, deadline(call));
    const abort = () => stream.cancel();
    call.signal?.addEventListener("abort", abort, { once: true });
    if (call.signal?.aborted) abort();
    try {
      for await (const event of stream) yield event as GenerateResponse;
    } catch (error) {
      throw errorOf(root(), error);
    } finally {
      call.signal?.removeEventListener("abort", abort);
      stream.cancel();
    }
  }

  /** Ends a request from elsewhere. */
  async cancel(requestId: string, call: Call = {}): Promise<void> {
    await this.unary(this.generation, "cancelRequest", { requestId }, call);
  }

  /** What became of a request, also some time after its end. */
  get(requestId: string, call: Call = {}): Promise<{ state?: string; usage?: Usage; [field: string]: unknown }> {
    return this.unary(this.generation, "getRequest", { requestId }, call);
  }

  /** The token ids the model would see. */
  async tokenize(text: string, call: Call = {}): Promise<number[]> {
    return (await this.unary<{ tokenIds?: number[] }>(this.generation, "tokenize", { text }, call)).tokenIds ?? [];
  }

  /** The served models. */
  async listModels(call: Call = {}): Promise<Model[]> {
    return (await this.unary<{ models?: Model[] }>(this.models, "listModels", {}, call)).models ?? [];
  }

  close(): void {
    this.generation.close();
    this.models.close();
  }

  private unary<T>(service: GrpcClient, method: string, message: object, call: Call): Promise<T> {
    return new Promise((resolve, reject) => {
      const done = (error: unknown, answer: T) => {
        call.signal?.removeEventListener("abort", abort);
        if (error) reject(errorOf(root(), error));
        else resolve(answer);
      };
      const running = (service as any)[method](message, this.metadata, deadline(call), done);
      const abort = () => running.cancel();
      call.signal?.addEventListener("abort", abort, { once: true });
      if (call.signal?.aborted) abort();
    });
  }
}

function deadline(call: Call): CallOptions {
  return call.timeoutMs === undefined ? {} : { deadline: Date.now() + call.timeoutMs };
}

function channelCredentials(tls: Options["tls"]): ChannelCredentials {
  if (!tls) return credentials.createInsecure();
  if (tls === true) return credentials.createSsl();
  const read = (file: string | undefined) => (file === undefined ? null : readFileSync(file));
  return credentials.createSsl(read(tls.ca), read(tls.key), read(tls.cert));
}
