#!/bin/sh
# Runs after removal. `apt purge` removes the state too. rpm has no purge and keeps the state.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "${1:-}" = purge ]; then
    rm -rf /var/lib/cantle /var/lib/cantle-task /run/cantle /etc/cantle
fi
