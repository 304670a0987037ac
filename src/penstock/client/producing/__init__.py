"""The producer: records and tables in, acknowledged batches out.

    tickets      pure    what became of a batch, and who wants to know
    batches      pure    records packed as Kafka wants them
    sequences    pure    idempotence: which number a batch carries, what an answer means
    lanes        pure    one partition's batches: filling, waiting, on their way, come back
    accumulator  pure    all lanes: memory, linger, readiness, deadlines
    inputs       pure    what users give to `send`, made into bytes
    deliveries   shell   a record's ticket as something to await
    topics       shell   who leads which lane
    answers      shell   what brokers said, acted on
    sending      shell   requests on their way; chores are what it starts beside them
    room         shell   waiting for memory, in line
    producer     shell   what users hold
    tables       shell   Arrow tables

A record: `Producer.send` -> `Router.route` -> `Accumulator.append_open` -> (the batch is full, or
has lingered) `Sender._pump` -> `Accumulator.drain` -> `Connection.submit` -> the answer ->
`Answers.on_answer` -> `Ticket.succeed` -> whoever awaits the `Delivery`.
"""
