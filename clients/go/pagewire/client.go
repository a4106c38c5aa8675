// Package pagewire is a client of Pagewire, an LLM inference service over gRPC.
//
//	client, err := pagewire.Dial("localhost:50051")
//	stream, err := client.Stream(ctx, &pb.GenerateRequest{Prompt: &pb.GenerateRequest_Text{Text: "Once upon a time"}})
//	for stream.Next() {
//		fmt.Print(stream.Event().GetDelta().GetText())
//	}
//	err = stream.Err()
//
// Deadlines and cancellation are the context's: its deadline is the request's, and cancelling it frees the request on the server.
package pagewire

import (
	"context"
	"crypto/tls"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	pb "pagewire.dev/client/pagewirev1"
)

const maxMessageBytes = 16 << 20

// Client talks to one server over one connection. It is safe for concurrent use.
type Client struct {
	connection *grpc.ClientConn
	generation pb.GenerationServiceClient
	models     pb.ModelServiceClient
	token      string
}

type options struct {
	tls   *tls.Config
	token string
}

// Option changes how a client connects.
type Option func(*options)

// WithTLS encrypts the connection; an empty configuration takes the system's authorities.
func WithTLS(configuration *tls.Config) Option { return func(o *options) { o.tls = configuration } }

// WithToken shows a bearer token. It is sent as it is: use TLS beyond this machine.
func WithToken(token string) Option { return func(o *options) { o.token = token } }

// Dial makes a client of the server at target, "HOST:PORT". It does not wait for the connection.
func Dial(target string, opts ...Option) (*Client, error) {
	var chosen options
	for _, opt := range opts {
		opt(&chosen)
	}
	transport := grpc.WithInsecure()
	if chosen.tls != nil {
		transport = grpc.WithTransportCredentials(credentials.NewTLS(chosen.tls))
	}
	calls := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.ForceCodec(codec{}))
	connection, err := grpc.Dial(target, transport, calls)
	if err != nil {
		return nil, err
	}
	return &Client{
		connection: connection,
		generation: pb.NewGenerationServiceClient(connection),
		models:     pb.NewModelServiceClient(connection),
		token:      chosen.token,
	}, nil
}

// Close ends the connection and every call on it.
func (c *Client) Close() error { return c.connection.Close() }

func (c *Client) outgoing(ctx context.Context) context.Context {
	if c.token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
}

// Generate runs a request and returns when all its outputs have ended.
func (c *Client) Generate(ctx context.Context, request *pb.GenerateRequest) (*pb.GenerateOnceResponse, error) {
	answer, err := c.generation.GenerateOnce(c.outgoing(ctx), &pb.GenerateOnceRequest{Request: request})
	return answer, wrap(err)
}

// Stream runs a request and gives its events as they come. Read it to its end or close it.
func (c *Client) Stream(ctx context.Context, request *pb.GenerateRequest) (*Stream, error) {
	ctx, cancel := context.WithCancel(c.outgoing(ctx))
	call, err := c.generation.Generate(ctx, request)
	if err != nil {
		cancel()
		return nil, wrap(err)
	}
	return &Stream{call: call, cancel: cancel}, nil
}

// Cancel ends a request from elsewhere.
func (c *Client) Cancel(ctx context.Context, requestID string) error {
	_, err := c.generation.CancelRequest(c.outgoing(ctx), &pb.CancelRequestRequest{RequestId: requestID})
	return wrap(err)
}

// Get tells what became of a request, also some time after its end.
func (c *Client) Get(ctx context.Context, requestID string) (*pb.GetRequestResponse, error) {
	answer, err := c.generation.GetRequest(c.outgoing(ctx), &pb.GetRequestRequest{RequestId: requestID})
	return answer, wrap(err)
}

// Tokenize gives the token ids the model would see.
func (c *Client) Tokenize(ctx context.Context, text string) ([]uint32, error) {
	request := &pb.TokenizeRequest{Prompt: &pb.TokenizeRequest_Text{Text: text}}
	answer, err := c.generation.Tokenize(c.outgoing(ctx), request)
	return answer.GetTokenIds(), wrap(err)
}

// ListModels gives the served models.
func (c *Client) ListModels(ctx context.Context) ([]*pb.Model, error) {
	answer, err := c.models.ListModels(c.outgoing(ctx), &pb.ListModelsRequest{})
	return answer.GetModels(), wrap(err)
}

// Stream is a running request. Not for concurrent use.
type Stream struct {
	call   pb.GenerationService_GenerateClient
	cancel context.CancelFunc
	event  *pb.GenerateResponse
	err    error
	ended  bool
}

// Next waits for the next event; false at the end, when Err tells whether it was a clean one.
func (s *Stream) Next() bool {
	if s.ended {
		return false
	}
	event, err := s.call.Recv()
	if err != nil {
		s.ended = true
		s.cancel()
		if !errors.Is(err, io.EOF) {
			s.err = wrap(err)
		}
		return false
	}
	s.event = event
	return true
}

// Event is the last event; the last one of a stream that ended well is its summary.
func (s *Stream) Event() *pb.GenerateResponse { return s.event }

// Err is why the stream ended, nil after a clean end.
func (s *Stream) Err() error { return s.err }

// Close cancels the request if it still runs.
func (s *Stream) Close() { s.cancel() }
