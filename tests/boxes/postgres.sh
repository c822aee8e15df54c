# PostgreSQL's image: a cluster, a user and a database made once, then the server, reached with a password.
set -e
data=/var/lib/postgresql/data/cluster
if [ ! -e "$data/PG_VERSION" ]; then
  printf '%s' "$POSTGRES_PASSWORD" >/tmp/password
  initdb -D "$data" -U "$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 -E UTF8 --locale=C
  echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
  pg_ctl -D "$data" -w -o "-c listen_addresses='' -k /tmp" start
  [ "$POSTGRES_DB" = postgres ] || createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl -D "$data" -w -m fast stop
fi
exec postgres -D "$data" -c listen_addresses='*' -k /tmp
