package pagewire

// Against a live server named by PAGEWIRE_TARGET that answers the ids 1, 2, 3 with "known" and counts for ever otherwise.

import (
	"context"
	"errors"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "pagewire.dev/client/pagewirev1"
)

func connect(t *testing.T) (*Client, context.Context) {
	t.Helper()
	target := os.Getenv("PAGEWIRE_TARGET")
	if target == "" {
		t.Fatal("PAGEWIRE_TARGET must name a server")
	}
	client, err := Dial(target)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(func() { cancel(); client.Close() })
	return client, ctx
}

func ids(ids ...uint32) *pb.GenerateRequest {
	return &pb.GenerateRequest{Prompt: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}}
}

func endless() *pb.GenerateRequest {
	request := ids(9, 9)
	request.Stop = &pb.StopOptions{MaxTokens: proto.Uint32(100_000)}
	return request
}

func expect(t *testing.T, err error, code codes.Code) *Error {
	t.Helper()
	var found *Error
	if !errors.As(err, &found) || found.Code != code {
		t.Fatalf("got %v, want %v", err, code)
	}
	return found
}

func TestAWholeAnswerEqualsItsStream(t *testing.T) {
	client, ctx := connect(t)
	once, err := client.Generate(ctx, ids(1, 2, 3))
	if err != nil || once.GetOutputs()[0].GetText() != "known" {
		t.Fatal(once, err)
	}
	stream, err := client.Stream(ctx, ids(1, 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	summaries := 0
	for stream.Next() {
		text.WriteString(stream.Event().GetDelta().GetText())
		if stream.Event().GetSummary() != nil {
			summaries++
		}
	}
	if stream.Err() != nil || text.String() != "known" || summaries != 1 || stream.Event().GetSummary() == nil {
		t.Fatal(stream.Err(), text.String(), summaries)
	}
}

func TestClosingAStreamCancelsTheRequest(t *testing.T) {
	client, ctx := connect(t)
	stream, err := client.Stream(ctx, endless())
	if err != nil {
		t.Fatal(err)
	}
	id := ""
	for deltas := 0; deltas < 3 && stream.Next(); {
		if id == "" {
			id = stream.Event().GetRequestId()
		}
		if stream.Event().GetDelta() != nil {
			deltas++
		}
	}
	stream.Close()
	for {
		answer, err := client.Get(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if answer.GetState() == pb.RequestState_REQUEST_STATE_ENDED {
			return
		}
	}
}

func TestCancellingFromElsewhere(t *testing.T) {
	client, ctx := connect(t)
	stream, err := client.Stream(ctx, endless())
	if err != nil || !stream.Next() {
		t.Fatal(err, stream.Err())
	}
	if err := client.Cancel(ctx, stream.Event().GetRequestId()); err != nil {
		t.Fatal(err)
	}
	reason := pb.FinishReason_FINISH_REASON_UNSPECIFIED
	for stream.Next() {
		if finished := stream.Event().GetFinished(); finished != nil {
			reason = finished.GetFinishReason()
		}
	}
	if stream.Err() != nil || reason != pb.FinishReason_FINISH_REASON_CANCELLED {
		t.Fatal(stream.Err(), reason)
	}
}

func TestTheContextsDeadlineIsTheRequests(t *testing.T) {
	client, ctx := connect(t)
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err := client.Generate(ctx, endless())
	expect(t, err, codes.DeadlineExceeded)
}

func TestAllWrongFieldsAreNamed(t *testing.T) {
	client, ctx := connect(t)
	request := ids(1, 2, 3)
	request.Sampling = &pb.SamplingOptions{Temperature: proto.Float32(-1), TopP: proto.Float32(2)}
	_, err := client.Generate(ctx, request)
	var fields []string
	for _, violation := range expect(t, err, codes.InvalidArgument).Violations {
		fields = append(fields, violation.Field)
	}
	sort.Strings(fields)
	if strings.Join(fields, " ") != "sampling.temperature sampling.top_p" {
		t.Fatal(fields)
	}
}

func TestAnUnknownModelIsNotFoundWithAReason(t *testing.T) {
	client, ctx := connect(t)
	request := ids(1, 2, 3)
	request.Model = "nobody"
	_, err := client.Generate(ctx, request)
	if expect(t, err, codes.NotFound).Reason == "" {
		t.Fatal("no reason")
	}
}

func TestModelsAndTokens(t *testing.T) {
	client, ctx := connect(t)
	models, err := client.ListModels(ctx)
	if err != nil || len(models) != 1 || models[0].GetMaxModelLen() == 0 {
		t.Fatal(models, err)
	}
	tokens, err := client.Tokenize(ctx, "Hi")
	if err != nil || len(tokens) == 0 {
		t.Fatal(tokens, err)
	}
}
