#!/bin/sh
# Runs after removal. `apt purge` removes the state too. rpm has no purge and keeps the state.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "${1:-}" = purge ]; then
    rm -rf /var/lib/cantle /run/cantle /etc/cantle
fi
