package dev.pagewire.client;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.Context;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.AbstractStub;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import pagewire.v1.Generation.CancelRequestRequest;
import pagewire.v1.Generation.GenerateOnceRequest;
import pagewire.v1.Generation.GenerateOnceResponse;
import pagewire.v1.Generation.GenerateRequest;
import pagewire.v1.Generation.GenerateResponse;
import pagewire.v1.Generation.GetRequestRequest;
import pagewire.v1.Generation.GetRequestResponse;
import pagewire.v1.Generation.TokenizeRequest;
import pagewire.v1.GenerationServiceGrpc;
import pagewire.v1.GenerationServiceGrpc.GenerationServiceBlockingStub;
import pagewire.v1.ModelOuterClass.ListModelsRequest;
import pagewire.v1.ModelOuterClass.Model;
import pagewire.v1.ModelServiceGrpc;
import pagewire.v1.ModelServiceGrpc.ModelServiceBlockingStub;

/**
 * A client of Pagewire, an LLM inference service over gRPC.
 *
 * <pre>{@code
 * try (Client client = Client.connect("localhost:50051");
 *     Stream stream = client.stream(GenerateRequest.newBuilder().setText("Once upon a time").build())) {
 *   stream.forEachRemaining(event -> System.out.print(event.getDelta().getText()));
 * }
 * }</pre>
 *
 * Failed calls throw {@link PagewireException}. A client may be used by several threads.
 */
public final class Client implements AutoCloseable {
  private static final int MAX_MESSAGE_BYTES = 16 << 20;
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final ManagedChannel channel;
  private final GenerationServiceBlockingStub generation;
  private final ModelServiceBlockingStub models;

  private Client(ManagedChannel channel, String token) {
    this.channel = channel;
    ClientInterceptor shown = new Token(token);
    generation = GenerationServiceGrpc.newBlockingStub(channel).withInterceptors(shown);
    models = ModelServiceGrpc.newBlockingStub(channel).withInterceptors(shown);
  }

  /** A client of the server at "HOST:PORT", without encryption: on this machine, or behind a mesh. */
  public static Client connect(String target) {
    return connect(target, InsecureChannelCredentials.create(), "");
  }

  /** A client with its own credentials (TLS: io.grpc.TlsChannelCredentials) and, if not empty, a bearer token. */
  public static Client connect(String target, ChannelCredentials credentials, String token) {
    ManagedChannel channel =
        Grpc.newChannelBuilder(target, credentials).maxInboundMessageSize(MAX_MESSAGE_BYTES).build();
    return new Client(channel, token);
  }

  /** Runs a request; returns when all its outputs have ended. */
  public GenerateOnceResponse generate(GenerateRequest request) {
    return generate(request, null);
  }

  /** The same with a limit of time, which is the request's deadline. */
  public GenerateOnceResponse generate(GenerateRequest request, Duration timeout) {
    GenerateOnceRequest once = GenerateOnceRequest.newBuilder().setRequest(request).build();
    return call(() -> within(generation, timeout).generateOnce(once));
  }

  /** Runs a request and gives its events as they come. */
  public Stream stream(GenerateRequest request) {
    return stream(request, null);
  }

  /** The same with a limit of time, which is the request's deadline. */
  public Stream stream(GenerateRequest request, Duration timeout) {
    Context.CancellableContext context = Context.current().withCancellation();
    Context previous = context.attach();
    try {
      Iterator<GenerateResponse> events = call(() -> within(generation, timeout).generate(request));
      return new Stream(context, events);
    } finally {
      context.detach(previous);
    }
  }

  /** Ends a request from elsewhere. */
  public void cancel(String requestId) {
    call(() -> generation.cancelRequest(CancelRequestRequest.newBuilder().setRequestId(requestId).build()));
  }

  /** What became of a request, also some time after its end. */
  public GetRequestResponse get(String requestId) {
    return call(() -> generation.getRequest(GetRequestRequest.newBuilder().setRequestId(requestId).build()));
  }

  /** The token ids the model would see. */
  public List<Integer> tokenize(String text) {
    return call(() -> generation.tokenize(TokenizeRequest.newBuilder().setText(text).build())).getTokenIdsList();
  }

  /** The served models. */
  public List<Model> listModels() {
    return call(() -> models.listModels(ListModelsRequest.getDefaultInstance())).getModelsList();
  }

  /** Ends every call that still runs. */
  @Override
  public void close() {
    channel.shutdownNow();
  }

  private static <S extends AbstractStub<S>> S within(S stub, Duration timeout) {
    return timeout == null ? stub : stub.withDeadlineAfter(timeout.toMillis(), TimeUnit.MILLISECONDS);
  }

  private static <T> T call(Supplier<T> call) {
    try {
      return call.get();
    } catch (StatusRuntimeException failure) {
      throw new PagewireException(failure);
    }
  }

  private record Token(String token) implements ClientInterceptor {
    @Override
    public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
      return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
        @Override
        public void start(Listener<R> listener, Metadata headers) {
          if (!token.isEmpty()) {
            headers.put(AUTHORIZATION, "Bearer " + token);
          }
          super.start(listener, headers);
        }
      };
    }
  }
}
