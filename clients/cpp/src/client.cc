#include "pagewire/client.h"

#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace pagewire {
namespace {

constexpr int kMaxMessageBytes = 16 << 20;

void Check(const grpc::Status& status) {
  if (!status.ok()) throw Error(status);
}

}  // namespace

Error::Error(const grpc::Status& status) : std::runtime_error(status.error_message()), code_(status.error_code()) {
  google::rpc::Status told;
  if (!told.ParseFromString(status.error_details())) return;
  for (const auto& detail : told.details()) {
    google::rpc::BadRequest bad_request;
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&bad_request)) {
      for (const auto& violation : bad_request.field_violations()) {
        violations_.push_back({violation.field(), violation.description()});
      }
    } else if (detail.UnpackTo(&info)) {
      reason_ = info.reason();
    } else if (detail.UnpackTo(&retry)) {
      const auto& delay = retry.retry_delay();
      retry_after_ = std::chrono::milliseconds(delay.seconds() * 1000 + delay.nanos() / 1'000'000);
    }
  }
}

Stream::Stream(std::unique_ptr<grpc::ClientContext> context, std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader)
    : context_(std::move(context)), reader_(std::move(reader)) {}

Stream::~Stream() {
  if (reader_ == nullptr || ended_) return;
  Cancel();
  v1::GenerateResponse unread;
  while (reader_->Read(&unread)) {
  }
  reader_->Finish();
}

std::optional<v1::GenerateResponse> Stream::Next() {
  if (ended_) return std::nullopt;
  v1::GenerateResponse event;
  if (reader_->Read(&event)) return event;
  ended_ = true;
  Check(reader_->Finish());
  return std::nullopt;
}

void Stream::Cancel() { context_->TryCancel(); }

Client::Client(const std::string& target, Options options) : token_(std::move(options.token)) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  channel_ = grpc::CreateCustomChannel(
      target, options.tls ? grpc::SslCredentials(*options.tls) : grpc::InsecureChannelCredentials(), arguments);
  generation_ = v1::GenerationService::NewStub(channel_);
  models_ = v1::ModelService::NewStub(channel_);
}

std::unique_ptr<grpc::ClientContext> Client::NewContext(Timeout timeout) const {
  auto context = std::make_unique<grpc::ClientContext>();
  if (timeout) context->set_deadline(std::chrono::system_clock::now() + *timeout);
  if (!token_.empty()) context->AddMetadata("authorization", "Bearer " + token_);
  return context;
}

v1::GenerateOnceResponse Client::Generate(const v1::GenerateRequest& request, Timeout timeout) {
  v1::GenerateOnceRequest once;
  *once.mutable_request() = request;
  v1::GenerateOnceResponse answer;
  Check(generation_->GenerateOnce(NewContext(timeout).get(), once, &answer));
  return answer;
}

class Stream Client::Stream(const v1::GenerateRequest& request, Timeout timeout) {
  auto context = NewContext(timeout);
  auto reader = generation_->Generate(context.get(), request);
  return {std::move(context), std::move(reader)};
}

void Client::Cancel(const std::string& request_id, Timeout timeout) {
  v1::CancelRequestRequest request;
  request.set_request_id(request_id);
  v1::CancelRequestResponse answer;
  Check(generation_->CancelRequest(NewContext(timeout).get(), request, &answer));
}

v1::GetRequestResponse Client::Get(const std::string& request_id, Timeout timeout) {
  v1::GetRequestRequest request;
  request.set_request_id(request_id);
  v1::GetRequestResponse answer;
  Check(generation_->GetRequest(NewContext(timeout).get(), request, &answer));
  return answer;
}

std::vector<std::uint32_t> Client::Tokenize(const std::string& text, Timeout timeout) {
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse answer;
  Check(generation_->Tokenize(NewContext(timeout).get(), request, &answer));
  return {answer.token_ids().begin(), answer.token_ids().end()};
}

std::vector<v1::Model> Client::ListModels(Timeout timeout) {
  v1::ListModelsResponse answer;
  Check(models_->ListModels(NewContext(timeout).get(), {}, &answer));
  return {answer.models().begin(), answer.models().end()};
}

}  // namespace pagewire
