# syntax=docker/dockerfile:1

# One service or the weir command as an image:
#
#   docker build --build-arg SERVICE=gate -t weir/gate .        gate, registry, conversation, inbox
#   docker build --build-arg SERVICE=weir -t weir/weir .        the whole mesh: docker run --network host weir/weir up

FROM golang:1.26 AS build
WORKDIR /src

# The go.mod files alone first: a change of code does not download everything again.
# .dockerignore lets nothing else in than what is built from.
COPY go.work go.work.sum ./
COPY gen/go.mod gen/go.sum gen/
COPY internal/go.mod internal/go.sum internal/
COPY bench/go.mod bench/go.sum bench/
COPY cmd/go.mod cmd/go.sum cmd/
COPY services/gate/go.mod services/gate/go.sum services/gate/
COPY services/registry/go.mod services/registry/go.sum services/registry/
COPY services/conversation/go.mod services/conversation/go.sum services/conversation/
COPY services/inbox/go.mod services/inbox/go.sum services/inbox/
RUN --mount=type=cache,target=/go/pkg/mod go mod download

COPY . .

ARG SERVICE
# Static, as the image it runs in has no libc. The folders that programs live in are of
# two shapes, and a wrong SERVICE stops here rather than as an empty image.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    case "$SERVICE" in \
      weir) main=./cmd/weir ;; \
      gate|registry|conversation|inbox) main="./services/$SERVICE/cmd/$SERVICE" ;; \
      *) echo "SERVICE is one of weir, gate, registry, conversation, inbox" >&2; exit 1 ;; \
    esac && \
    CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /out/program "$main" && \
    mkdir /out/data

# static has CA certificates, time zones and a nonroot user, and no shell.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /out/program /program
# Where `weir up` keeps its data; a volume mounted here takes over the owner.
COPY --from=build --chown=nonroot:nonroot /out/data /data
WORKDIR /data
# gRPC, and metrics with health over HTTP.
EXPOSE 7001 9001
ENTRYPOINT ["/program"]
