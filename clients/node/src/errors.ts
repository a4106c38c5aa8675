/** A failed call: its gRPC status and what google.rpc details say about it. */

import { Metadata, ServiceError, status } from "@grpc/grpc-js";
import type { Root } from "./protos.js";

export interface FieldViolation {
  field: string;
  description: string;
}

export class PagewireError extends Error {
  constructor(
    /** The gRPC status code, see `status` of @grpc/grpc-js. */
    readonly code: status,
    message: string,
    /** All fields of the request that are wrong. */
    readonly violations: FieldViolation[] = [],
    /** The reason, as docs/api.md lists them; empty if none was told. */
    readonly reason = "",
    /** When to try again, in milliseconds. */
    readonly retryDelayMs?: number,
  ) {
    super(message);
    this.name = "PagewireError";
  }
}

/** What a failed call threw, with its details read. */
export function errorOf(root: Root, thrown: unknown): unknown {
  const error = thrown as Partial<ServiceError>;
  if (typeof error?.code !== "number" || typeof error.details !== "string") return thrown;
  const violations: FieldViolation[] = [];
  let reason = "";
  let retryDelayMs: number | undefined;
  for (const detail of details(root, error.metadata)) {
    if (detail.type === "google.rpc.BadRequest") {
      for (const { field = "", description = "" } of detail.message.fieldViolations ?? []) violations.push({ field, description });
    } else if (detail.type === "google.rpc.ErrorInfo") {
      reason = detail.message.reason ?? "";
    } else if (detail.type === "google.rpc.RetryInfo") {
      const delay = detail.message.retryDelay ?? {};
      retryDelayMs = Number(delay.seconds ?? 0) * 1000 + Number(delay.nanos ?? 0) / 1e6;
    }
  }
  return new PagewireError(error.code, error.details, violations, reason, retryDelayMs);
}

function* details(root: Root, metadata: Metadata | undefined): Generator<{ type: string; message: any }> {
  const packed = metadata?.get("grpc-status-details-bin")[0];
  if (!Buffer.isBuffer(packed)) return;
  for (const any of root.decode("google.rpc.Status", packed).details ?? []) {
    // The loader brings its own Any, whose names stay as they are.
    const type = String(any.type_url ?? any.typeUrl).split("/").pop() ?? "";
    if (root.knows(type)) yield { type, message: root.decode(type, any.value) };
  }
}
