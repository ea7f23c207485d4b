#!/bin/sh
# After removal. `apt purge` removes the state too; rpm has no purge and keeps it.
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "${1:-}" = purge ]; then
    rm -rf /var/lib/cantle /run/cantle /etc/cantle
fi
