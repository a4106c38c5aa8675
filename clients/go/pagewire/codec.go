package pagewire

import (
	"fmt"

	"google.golang.org/protobuf/proto"
)

// codec writes messages with google.golang.org/protobuf, as our stubs need; grpc before 1.34 would use its predecessor.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(value interface{}) ([]byte, error) {
	message, ok := value.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("pagewire: %T is no message", value)
	}
	return proto.Marshal(message)
}

func (codec) Unmarshal(bytes []byte, value interface{}) error {
	message, ok := value.(proto.Message)
	if !ok {
		return fmt.Errorf("pagewire: %T is no message", value)
	}
	return proto.Unmarshal(bytes, message)
}
