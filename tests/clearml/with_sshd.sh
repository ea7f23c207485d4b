#!/bin/sh
# Runs a command on a machine that has OpenSSH's server: `with_sshd.sh DIRECTORY COMMAND…`. Debian's packages, downloaded into the directory,
# are installed over this system, and only this command sees them. Exits with 77 where they cannot be had.
set -eu
packages=$1
shift
if ! ls "$packages"/openssh-server_*.deb >/dev/null 2>&1; then
    mkdir -p "$packages/partial"
    # A machine that has them already downloads them again.
    if ! apt-get install -y --download-only --reinstall -o Dir::Cache::archives="$packages" openssh-server >/dev/null; then
        echo "skipped: the package openssh-server cannot be downloaded here"
        exit 77
    fi
fi
[ $# -gt 0 ] || exit 0
# shellcheck disable=SC2016  # the inner shell's own variables
exec unshare --mount --propagation private sh -euc '
    packages=$0
    layers=$(mktemp -d)
    mount -t tmpfs tmpfs "$layers"
    for each in etc usr var root; do
        mkdir -p "$layers/$each/upper" "$layers/$each/work"
        mount -t overlay overlay -o "lowerdir=/$each,upperdir=$layers/$each/upper,workdir=$layers/$each/work" "/$each"
    done
    # No service starts with its package.
    printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    DEBIAN_FRONTEND=noninteractive dpkg -i "$packages"/*.deb >"$layers/dpkg.log" 2>&1 || { cat "$layers/dpkg.log"; exit 1; }
    exec "$@"
' "$packages" "$@"
