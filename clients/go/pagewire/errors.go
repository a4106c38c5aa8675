package pagewire

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a failed call: its gRPC status and what google.rpc details say about it.
type Error struct {
	Code    codes.Code
	Message string
	// Violations are all fields of the request that are wrong.
	Violations []Violation
	// Reason is one of docs/api.md; empty if none was told.
	Reason string
	// RetryAfter is when to try again; 0 if the server did not say.
	RetryAfter time.Duration
}

// Violation is one wrong field.
type Violation struct{ Field, Description string }

func (e *Error) Error() string { return e.Code.String() + ": " + e.Message }

// GRPCStatus lets status.FromError and status.Code read it.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

func wrap(err error) error {
	if err == nil {
		return nil
	}
	told, ok := status.FromError(err)
	if !ok {
		return err
	}
	found := &Error{Code: told.Code(), Message: told.Message()}
	for _, detail := range told.Details() {
		switch detail := detail.(type) {
		case *errdetails.BadRequest:
			for _, violation := range detail.GetFieldViolations() {
				found.Violations = append(found.Violations, Violation{violation.GetField(), violation.GetDescription()})
			}
		case *errdetails.ErrorInfo:
			found.Reason = detail.GetReason()
		case *errdetails.RetryInfo:
			found.RetryAfter = time.Duration(detail.GetRetryDelay().GetSeconds())*time.Second + time.Duration(detail.GetRetryDelay().GetNanos())
		}
	}
	return found
}
