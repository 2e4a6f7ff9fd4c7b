#!/bin/sh
# Debian's chromium and chromium-driver for the tests of pages, where apt can be used without asking.
# Never fails: without a browser those tests are skipped, and say so.
have() { { command -v chromium || command -v google-chrome; } >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1; }
sorry() { echo "no browser for the tests of pages: $1; they are skipped"; exit 0; }

have && exit 0
command -v apt-get >/dev/null 2>&1 || sorry "chromium and chromedriver are not installed, and there is no apt-get"
if [ "$(id -u)" = 0 ]; then
    root=
elif sudo -n true >/dev/null 2>&1; then
    root="sudo -n"
else
    sorry "apt-get install chromium chromium-driver needs an administrator"
fi
apt() { $root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
    -o DPkg::Lock::Timeout=60 "$@" >/dev/null 2>&1; }
echo "installing Debian's chromium and chromium-driver for the tests of pages"
apt update
apt install -y --no-install-recommends chromium chromium-driver || sorry "apt-get could not install chromium and chromium-driver"
have || sorry "this system's packages chromium and chromium-driver hold no browser"
