#!/bin/sh
# Makes what docker-compose.yml mounts as secrets: a token for callers (printed once; only its digest is kept) and Grafana's password.
set -eu
cd "$(dirname "$0")"
umask 022
token=$(openssl rand -hex 32)
digest=$(printf %s "$token" | sha256sum | cut -d' ' -f1)
printf 'tokens:\n  - {sha256: "%s", tenant: default}\n' "$digest" > tokens.yaml
openssl rand -hex 16 > grafana_password
echo "token for callers: $token"
echo "Grafana: admin / $(cat grafana_password)"
