#!/usr/bin/env bash
# Docker's engine, compose v2, buildx and etcd of Debian's packages. As root.
#   engine.sh install DIR     installs them; etcd goes to DIR/bin
#   engine.sh start DIR       starts the engine, all of it below DIR
#   engine.sh stop DIR        stops it
set -euo pipefail
DIR=$(readlink -m "$2"); mkdir -p "$DIR"
case $1 in
install)
  apt-get update -q
  apt-get install -y --no-install-recommends docker.io containerd runc containernetworking-plugins conntrack iptables debootstrap busybox-static
  # three packages of the next suite, unpacked and not installed: apt's own lists and sources stay as they are
  A=$(mktemp -d); chmod 755 "$A"; mkdir -p "$A"/lists/partial "$A"/cache/archives/partial
  URL=$(grep -rhoE '^(URIs: |deb (\[[^]]*\] )?)https?://[^ ]*/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null \
        | grep -oE 'https?://[^ ]*' | head -1)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $URL sid main" > "$A/sources.list"
  O="-o Dir::Etc::sourcelist=$A/sources.list -o Dir::Etc::sourceparts=/nonexistent -o Dir::State::lists=$A/lists -o Dir::Cache=$A/cache"
  # shellcheck disable=SC2086 # several options
  apt-get -q $O update && (cd "$A" && apt-get -q $O download docker-compose/sid docker-buildx/sid etcd-server/sid)
  for package in "$A"/*.deb; do dpkg-deb -x "$package" "$A/x"; done
  mkdir -p ~/.docker/cli-plugins "$DIR/bin"
  for plugin in docker-compose docker-buildx; do install -m 755 "$A/x/usr/libexec/docker/cli-plugins/$plugin" ~/.docker/cli-plugins/; done
  install -m 755 "$A/x/usr/bin/etcd" "$DIR/bin/"; rm -rf "$A"
  docker compose version; docker buildx version;;
start)
  cat > "$DIR/daemon.json" <<J
{"data-root": "$DIR/data", "exec-opts": ["native.cgroupdriver=cgroupfs"], "oom-score-adjust": 0,
 "bip": "172.30.0.1/16", "default-address-pools": [{"base": "172.31.0.0/16", "size": 24}], "features": {"buildkit": true}}
J
  setsid dockerd --config-file "$DIR/daemon.json" > "$DIR/dockerd.log" 2>&1 < /dev/null & echo $! > "$DIR/pid"
  for _ in $(seq 60); do docker info > /dev/null 2>&1 && exit 0; sleep 1; done
  tail "$DIR/dockerd.log"; exit 1;;
stop) kill "$(cat "$DIR/pid")";;
esac
