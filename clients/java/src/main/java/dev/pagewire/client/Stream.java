package dev.pagewire.client;

import io.grpc.Context;
import io.grpc.StatusRuntimeException;
import java.util.Iterator;
import pagewire.v1.Generation.GenerateResponse;

/** A running request: its events as they come, the summary last. Closing it early cancels the request. */
public final class Stream implements Iterator<GenerateResponse>, AutoCloseable {
  private final Context.CancellableContext context;
  private final Iterator<GenerateResponse> events;

  Stream(Context.CancellableContext context, Iterator<GenerateResponse> events) {
    this.context = context;
    this.events = events;
  }

  /** Whether another event comes; waits for it. Throws PagewireException if the request failed. */
  @Override
  public boolean hasNext() {
    try {
      return events.hasNext();
    } catch (StatusRuntimeException failure) {
      throw new PagewireException(failure);
    }
  }

  @Override
  public GenerateResponse next() {
    try {
      return events.next();
    } catch (StatusRuntimeException failure) {
      throw new PagewireException(failure);
    }
  }

  @Override
  public void close() {
    context.cancel(null);
  }
}
