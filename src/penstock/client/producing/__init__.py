"""The producer: sends records and Arrow tables as batches and reports their acknowledgement.

    tickets      pure    the outcome of a batch, and the callbacks that wait for it
    batches      pure    packs records into Kafka's batch format
    sequences    pure    idempotence: assigns sequence numbers, interprets answers
    lanes        pure    one partition's batches: filling, ready, in flight, to be retried
    accumulator  pure    all lanes: memory, linger, readiness, deadlines
    inputs       pure    converts the arguments of `send` to bytes
    deliveries   shell   makes a record's ticket awaitable
    topics       shell   the leader of each lane
    answers      shell   handles the answers of brokers
    sending      shell   sends requests; `chores` are its background tasks
    room         shell   waits for buffer memory, first come first served
    producer     shell   the public class
    tables       shell   Arrow tables

The path of a record: `Producer.send` -> `Router.route` -> `Accumulator.append_open` -> (the batch
is full, or its linger time is over) `Sender._pump` -> `Accumulator.drain` -> `Connection.submit` ->
the answer -> `Answers.on_answer` -> `Ticket.succeed` -> the `Delivery` resolves.
"""
