#!/bin/sh
# Install Chromium, which the tests of the report use, where apt-get can do it. Where it cannot, say why and succeed:
# those tests are then skipped, and the last lines of the test run say so.
for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done

give_up() {
  echo "No Chromium: $1. The tests of the report in a browser will be skipped." >&2
  exit 0
}

command -v apt-get >/dev/null 2>&1 || give_up "it is not installed, and there is no apt-get to install it with"
[ "$(id -u)" = 0 ] || give_up "it is not installed, and only root can install it (apt-get install chromium)"

said=$(mktemp)
trap 'rm -f "$said"' EXIT
wait=600 # seconds for another apt-get to finish

apt() {
  DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o "DPkg::Lock::Timeout=$wait" "$@" >"$said" 2>&1
}

# The timeout above does not cover the lock of the package lists.
update() {
  waited=0
  until apt update; do
    grep -q "lists/lock" "$said" && [ "$waited" -lt "$wait" ] || return 1
    sleep 5
    waited=$((waited + 5))
  done
}

echo "Installing Chromium for the tests of the report."
apt install chromium || { update && apt install chromium; } || give_up "apt-get failed: $(tail -n 1 "$said")"
