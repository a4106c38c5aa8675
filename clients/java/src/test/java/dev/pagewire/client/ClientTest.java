package dev.pagewire.client;

import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import pagewire.v1.Generation.FinishReason;
import pagewire.v1.Generation.GenerateRequest;
import pagewire.v1.Generation.GenerateResponse;
import pagewire.v1.Generation.RequestState;
import pagewire.v1.Generation.SamplingOptions;
import pagewire.v1.Generation.StopOptions;
import pagewire.v1.Generation.TokenIds;

/** Against a live server named by PAGEWIRE_TARGET that answers the ids 1, 2, 3 with "known" and counts for ever otherwise. */
public final class ClientTest {
  private interface Test {
    void run(Client client) throws Exception;
  }

  private static void require(boolean holds, Object what) {
    if (!holds) {
      throw new AssertionError("not so: " + what);
    }
  }

  private static GenerateRequest.Builder ids(Integer... ids) {
    return GenerateRequest.newBuilder().setTokenIds(TokenIds.newBuilder().addAllIds(List.of(ids)));
  }

  private static GenerateRequest endless() {
    return ids(9, 9).setStop(StopOptions.newBuilder().setMaxTokens(100_000)).build();
  }

  private static PagewireException failure(Status.Code code, Runnable call) {
    try {
      call.run();
    } catch (PagewireException error) {
      require(error.code() == code, error.code() + " is " + code);
      return error;
    }
    throw new AssertionError("the call did not fail");
  }

  private static void aWholeAnswerEqualsItsStream(Client client) {
    require(client.generate(ids(1, 2, 3).build()).getOutputs(0).getText().equals("known"), "the answer");
    StringBuilder text = new StringBuilder();
    List<GenerateResponse> events = new ArrayList<>();
    try (Stream stream = client.stream(ids(1, 2, 3).build())) {
      stream.forEachRemaining(events::add);
    }
    events.forEach(event -> text.append(event.getDelta().getText()));
    require(text.toString().equals("known"), text);
    require(events.stream().filter(GenerateResponse::hasSummary).count() == 1, "there is one summary");
    require(events.get(events.size() - 1).hasSummary(), "it is the last event");
  }

  private static void closingAStreamCancelsTheRequest(Client client) throws InterruptedException {
    String id = "";
    try (Stream stream = client.stream(endless())) {
      for (int deltas = 0; deltas < 3; ) {
        GenerateResponse event = stream.next();
        id = event.getRequestId().isEmpty() ? id : event.getRequestId();
        deltas += event.hasDelta() ? 1 : 0;
      }
    }
    while (client.get(id).getState() != RequestState.REQUEST_STATE_ENDED) {
      Thread.sleep(10);
    }
  }

  private static void cancellingFromElsewhere(Client client) {
    FinishReason reason = FinishReason.FINISH_REASON_UNSPECIFIED;
    try (Stream stream = client.stream(endless())) {
      client.cancel(stream.next().getRequestId());
      while (stream.hasNext()) {
        GenerateResponse event = stream.next();
        reason = event.hasFinished() ? event.getFinished().getFinishReason() : reason;
      }
    }
    require(reason == FinishReason.FINISH_REASON_CANCELLED, reason);
  }

  private static void theTimeoutIsTheRequestsDeadline(Client client) {
    failure(Status.Code.DEADLINE_EXCEEDED, () -> client.generate(endless(), Duration.ofMillis(200)));
  }

  private static void allWrongFieldsAreNamed(Client client) {
    SamplingOptions wrong = SamplingOptions.newBuilder().setTemperature(-1).setTopP(2).build();
    PagewireException error =
        failure(Status.Code.INVALID_ARGUMENT, () -> client.generate(ids(1, 2, 3).setSampling(wrong).build()));
    List<String> fields = error.violations().stream().map(PagewireException.Violation::field).sorted().toList();
    require(fields.equals(List.of("sampling.temperature", "sampling.top_p")), fields);
  }

  private static void anUnknownModelIsNotFoundWithAReason(Client client) {
    GenerateRequest request = ids(1, 2, 3).setModel("nobody").build();
    require(!failure(Status.Code.NOT_FOUND, () -> client.generate(request)).reason().isEmpty(), "a reason is told");
  }

  private static void modelsAndTokens(Client client) {
    require(client.listModels().get(0).getMaxModelLen() > 0, "the model has a length");
    require(!client.tokenize("Hi").isEmpty(), "there are tokens");
  }

  public static void main(String[] arguments) {
    Map<String, Test> tests = new LinkedHashMap<>();
    tests.put("a whole answer equals its stream", ClientTest::aWholeAnswerEqualsItsStream);
    tests.put("closing a stream cancels the request", ClientTest::closingAStreamCancelsTheRequest);
    tests.put("cancelling from elsewhere", ClientTest::cancellingFromElsewhere);
    tests.put("the timeout is the request's deadline", ClientTest::theTimeoutIsTheRequestsDeadline);
    tests.put("all wrong fields are named", ClientTest::allWrongFieldsAreNamed);
    tests.put("an unknown model is not found, with a reason", ClientTest::anUnknownModelIsNotFoundWithAReason);
    tests.put("models and tokens", ClientTest::modelsAndTokens);
    int failed = 0;
    try (Client client = Client.connect(System.getenv("PAGEWIRE_TARGET"))) {
      for (Map.Entry<String, Test> test : tests.entrySet()) {
        try {
          test.getValue().run(client);
          System.out.println("ok      " + test.getKey());
        } catch (Exception | AssertionError error) {
          failed++;
          System.out.println("FAILED  " + test.getKey());
          error.printStackTrace(System.out);
        }
      }
    }
    System.exit(failed == 0 ? 0 : 1);
  }
}
