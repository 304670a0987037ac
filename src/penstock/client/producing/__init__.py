"""The producer: sends records and Arrow tables as batches and reports their acknowledgement.

    batch_outcome      pure    the outcome of a batch, and the callbacks that wait for it
    batches            pure    packs records into Kafka's batch format
    sequences          pure    idempotence: assigns sequence numbers, interprets answers
    lanes              pure    one partition's batches: filling, ready, in flight, to be retried
    accumulator        pure    all lanes: memory, linger, readiness, deadlines
    record_input       pure    converts the arguments of `send` to bytes
    deliveries         shell   makes a record's outcome awaitable
    topics             shell   the leader of each lane
    produce_responses  shell   handles the responses of brokers
    sender             shell   sends requests; `background_tasks` runs what takes time
    buffer_memory      shell   waits for buffer memory, first come first served
    core               shell   lifecycle, topics, flushing, transactions
    producer           shell   the public class
    tables             shell   Arrow tables

The path of a record: `Producer.send` -> `Router.route` -> `Accumulator.append_open` -> (the batch
is full, or its linger time is over) `Sender._pump` -> `Accumulator.drain` -> `Connection.submit` ->
the answer -> `ProduceResponses.on_answer` -> `BatchOutcome.succeed` -> the `Delivery` resolves.
"""
