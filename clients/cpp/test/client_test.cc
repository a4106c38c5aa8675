// Against a live server named by PAGEWIRE_TARGET that answers the ids 1, 2, 3 with "known" and counts for ever otherwise.

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "pagewire/client.h"

using namespace std::chrono_literals;
namespace v1 = pagewire::v1;

namespace {

void Require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

v1::GenerateRequest Ids(const std::vector<std::uint32_t>& ids) {
  v1::GenerateRequest request;
  for (auto id : ids) request.mutable_token_ids()->add_ids(id);
  return request;
}

v1::GenerateRequest Endless() {
  auto request = Ids({9, 9});
  request.mutable_stop()->set_max_tokens(100'000);
  return request;
}

pagewire::Error Failure(grpc::StatusCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const pagewire::Error& error) {
    Require(error.code() == code, std::string("the code is ") + std::to_string(code) + ": " + error.what());
    return error;
  }
  throw std::runtime_error("the call did not fail");
}

void AWholeAnswerEqualsItsStream(pagewire::Client& client) {
  Require(client.Generate(Ids({1, 2, 3})).outputs(0).text() == "known", "the answer");
  auto stream = client.Stream(Ids({1, 2, 3}));
  std::string text;
  int summaries = 0;
  bool last_is_summary = false;
  while (auto event = stream.Next()) {
    text += event->delta().text();
    summaries += event->has_summary();
    last_is_summary = event->has_summary();
  }
  Require(text == "known" && summaries == 1 && last_is_summary, "the stream");
}

void DestroyingAStreamCancelsTheRequest(pagewire::Client& client) {
  std::string id;
  {
    auto stream = client.Stream(Endless());
    for (int deltas = 0; deltas < 3;) {
      auto event = stream.Next();
      Require(event.has_value(), "there is an event");
      id = event->request_id().empty() ? id : event->request_id();
      deltas += event->has_delta();
    }
  }
  while (client.Get(id).state() != v1::REQUEST_STATE_ENDED) std::this_thread::sleep_for(10ms);
}

void CancellingFromElsewhere(pagewire::Client& client) {
  auto stream = client.Stream(Endless());
  client.Cancel(stream.Next()->request_id());
  auto reason = v1::FINISH_REASON_UNSPECIFIED;
  while (auto event = stream.Next()) {
    if (event->has_finished()) reason = event->finished().finish_reason();
  }
  Require(reason == v1::FINISH_REASON_CANCELLED, "it was cancelled");
}

void TheTimeoutIsTheRequestsDeadline(pagewire::Client& client) {
  Failure(grpc::DEADLINE_EXCEEDED, [&] { client.Generate(Endless(), 200ms); });
}

void AllWrongFieldsAreNamed(pagewire::Client& client) {
  auto request = Ids({1, 2, 3});
  request.mutable_sampling()->set_temperature(-1);
  request.mutable_sampling()->set_top_p(2);
  auto error = Failure(grpc::INVALID_ARGUMENT, [&] { client.Generate(request); });
  std::vector<std::string> fields;
  for (const auto& violation : error.violations()) fields.push_back(violation.field);
  std::sort(fields.begin(), fields.end());
  Require(fields == std::vector<std::string>{"sampling.temperature", "sampling.top_p"}, "both fields are named");
}

void AnUnknownModelIsNotFoundWithAReason(pagewire::Client& client) {
  auto request = Ids({1, 2, 3});
  request.set_model("nobody");
  Require(!Failure(grpc::NOT_FOUND, [&] { client.Generate(request); }).reason().empty(), "a reason is told");
}

void ModelsAndTokens(pagewire::Client& client) {
  Require(client.ListModels().at(0).max_model_len() > 0, "the model has a length");
  Require(!client.Tokenize("Hi").empty(), "there are tokens");
}

}  // namespace

int main() {
  const char* target = std::getenv("PAGEWIRE_TARGET");
  if (target == nullptr) {
    std::cerr << "PAGEWIRE_TARGET must name a server\n";
    return 2;
  }
  pagewire::Client client(target);
  const std::vector<std::pair<const char*, void (*)(pagewire::Client&)>> tests = {
      {"a whole answer equals its stream", AWholeAnswerEqualsItsStream},
      {"destroying a stream cancels the request", DestroyingAStreamCancelsTheRequest},
      {"cancelling from elsewhere", CancellingFromElsewhere},
      {"the timeout is the request's deadline", TheTimeoutIsTheRequestsDeadline},
      {"all wrong fields are named", AllWrongFieldsAreNamed},
      {"an unknown model is not found, with a reason", AnUnknownModelIsNotFoundWithAReason},
      {"models and tokens", ModelsAndTokens},
  };
  int failed = 0;
  for (const auto& [name, test] : tests) {
    try {
      test(client);
      std::cout << "ok      " << name << std::endl;
    } catch (const std::exception& error) {
      ++failed;
      std::cout << "FAILED  " << name << ": " << error.what() << std::endl;
    }
  }
  return failed == 0 ? 0 : 1;
}
