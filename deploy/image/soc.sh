#!/bin/sh
# belay-soc: the agent on Atlas 200I SoC A1 (deploy/components/soc). The driver's library asks dmp_daemon, which logs through slogd;
# both are programs of the host, mounted read only, and each runs as the user that the driver's installer makes for it.
set -eu

chown HwHiAiUser:HwHiAiUser /var/driver /usr/slog
chown HwDmUser:HwDmUser /var/dmp
chmod 750 /var/driver /usr/slog /var/dmp
# the end of a connection of each daemon lies here
chown HwDmUser:HwHiAiUser /home/drv/hdc_ppc
chmod 770 /home/drv/hdc_ppc

setpriv --reuid HwHiAiUser --regid HwHiAiUser --init-groups /var/slogd -d &
sleep 1
setpriv --reuid HwDmUser --regid HwDmUser --init-groups /var/dmp_daemon -I -M -U 8087 &
# the library does not wait for the daemon: without it the agent would end at once, and start both again
sleep 2

exec belay "$@"
