/** The protos, loaded once. */

import { fileURLToPath } from "node:url";
import * as path from "node:path";
import { loadPackageDefinition, type GrpcObject, type ServiceClientConstructor } from "@grpc/grpc-js";
import { loadSync, type MessageTypeDefinition, type PackageDefinition } from "@grpc/proto-loader";

const PROTOS = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../protos");
const FILES = ["pagewire/v1/generation.proto", "pagewire/v1/model.proto", "google/rpc/status.proto", "google/rpc/error_details.proto"];

export class Root {
  private readonly definition: PackageDefinition = loadSync(FILES, {
    includeDirs: [PROTOS],
    longs: String,
    enums: String,
    oneofs: true,
  });
  private readonly services = loadPackageDefinition(this.definition);

  service(name: "GenerationService" | "ModelService"): ServiceClientConstructor {
    const found = (this.services["pagewire"] as GrpcObject)["v1"] as GrpcObject;
    return found[name] as ServiceClientConstructor;
  }

  knows(type: string): boolean {
    return type in this.definition;
  }

  decode(type: string, bytes: Buffer): any {
    return (this.definition[type] as MessageTypeDefinition<object, object>).deserialize(bytes);
  }
}

let loaded: Root | undefined;

export function root(): Root {
  return (loaded ??= new Root());
}
