# shellcheck shell=bash
# Sourced, on Debian and Ubuntu: missing_packages prints which packages of ci/packages.txt are
# missing, with "ci" also those of .ci/run; install_packages installs these, with sudo unless run
# by root.

missing_packages() {
    local package wanted installed lists=
    wanted=$(sed -e 's/#.*//' -e "s/^${1:-}: //" -e '/^ci: /d' ci/packages.txt)
    # shellcheck disable=SC2086  # a list of package names
    installed=$(dpkg-query --show --showformat ' ${Package}=${db:Status-Status} ' $wanted 2>/dev/null) || :
    # Ubuntu lacks some of them. Before the first `apt-get update` nobody knows.
    ! known python3 || lists=there
    for package in $wanted; do
        if [[ $installed != *" $package=installed "* ]] && { [ -z "$lists" ] || known "$package"; }; then
            echo "$package"
        fi
    done
}

known() {
    [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]
}

may_install() {
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null
}

# A subshell, so that policy-rc.d goes away again however the command ends.
install_packages() (
    as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }
    apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@"; }
    apt update || exit
    # shellcheck disable=SC2046  # words
    set -- $(missing_packages "$@")
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        # Debian asks this program whether a package may start its service: none may.
        trap 'as_root rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root sh -c "cat >$policy && chmod +x $policy" || exit
    fi
    apt install -y --no-install-recommends "$@" || exit
    if [ -d /run/systemd/system ]; then
        # Nor may one start with the machine, if this has brought it.
        for package; do
            case $package in
                nginx-light) as_root systemctl disable nginx ;;
                docker-registry | prometheus-node-exporter) as_root systemctl disable "$package" ;;
                openssh-server) as_root systemctl disable ssh ;;
            esac
        done
    fi
)
