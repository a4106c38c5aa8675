package dev.pagewire.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** A failed call: its gRPC status and what google.rpc details say about it. */
public final class PagewireException extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private static final Metadata.Key<byte[]> DETAILS =
      Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);

  /** One wrong field of a request. */
  public record Violation(String field, String description) {}

  private final transient Status status;
  private final transient List<Violation> violations = new ArrayList<>();
  private String reason = "";
  private Duration retryAfter;

  PagewireException(StatusRuntimeException failure) {
    super(failure.getStatus().getDescription(), failure);
    status = failure.getStatus();
    Metadata trailers = failure.getTrailers();
    byte[] packed = trailers == null ? null : trailers.get(DETAILS);
    if (packed != null) {
      read(packed);
    }
  }

  /** The gRPC status code. */
  public Status.Code code() {
    return status.getCode();
  }

  /** All fields of the request that are wrong. */
  public List<Violation> violations() {
    return List.copyOf(violations);
  }

  /** One of docs/api.md; empty if none was told. */
  public String reason() {
    return reason;
  }

  /** When to try again, if the server said. */
  public Optional<Duration> retryAfter() {
    return Optional.ofNullable(retryAfter);
  }

  private void read(byte[] packed) {
    try {
      for (Any detail : com.google.rpc.Status.parseFrom(packed).getDetailsList()) {
        if (detail.is(BadRequest.class)) {
          for (BadRequest.FieldViolation violation : detail.unpack(BadRequest.class).getFieldViolationsList()) {
            violations.add(new Violation(violation.getField(), violation.getDescription()));
          }
        } else if (detail.is(ErrorInfo.class)) {
          reason = detail.unpack(ErrorInfo.class).getReason();
        } else if (detail.is(RetryInfo.class)) {
          com.google.protobuf.Duration delay = detail.unpack(RetryInfo.class).getRetryDelay();
          retryAfter = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
        }
      }
    } catch (InvalidProtocolBufferException broken) {
      addSuppressed(broken);
    }
  }
}
