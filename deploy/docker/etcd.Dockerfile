# Debian's etcd, for compose.yml.
FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends etcd-server \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10002 --home-dir /var/lib/etcd etcd-runner \
 && install -d -o etcd-runner /var/lib/etcd/data
USER etcd-runner
VOLUME /var/lib/etcd/data
ENTRYPOINT ["etcd"]
