"""Real programs from Debian packages: how each is set up, found and put under load.

``start`` is a shell script that ends in ``exec`` of the program; ``load`` is one that repeats
itself until it is killed. Both run in a directory of their own, with ``$PORT`` and two ports
more, ``$ORIGIN`` and ``$NAMES``, at which a web server and a name server answer, ``$LOAD``
(``load.py``) and ``$DIR``. Whatever they begin belongs to their process groups.
"""

import hashlib
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RealProgram:
    """One program."""

    name: str
    start: str
    load: str
    packages: tuple[str, ...] = ()
    traced: str = ""  # Command name of the descendant that is traced; empty: the program itself
    runtime: bool = False  # It has a garbage collector

    @property
    def half(self) -> str:
        """``seen`` while rules are changed, or ``unseen``: by the name alone, for ever."""
        digest = hashlib.blake2b(self.name.encode(), digest_size=8).digest()
        return "unseen" if digest[0] & 1 else "seen"


_WEB = '"$LOAD" http $PORT 15 /a.txt /b.txt /sub/ /missing%d /%d.txt'
_SITE = "mkdir -p www/sub; for n in $(seq 300); do head -c $((n * 40)) /dev/zero >www/$n.txt; done; cp www/9.txt www/a.txt; cp www/99.txt www/b.txt; cp www/1.txt www/sub/index.html"
_CERTIFICATE = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 30 -subj /CN=localhost 2>/dev/null; cat key.pem cert.pem >both.pem"
_SQL_STREAM = """
n=0; while :; do n=$((n + 1))
echo "INSERT INTO t (name, body) VALUES ('n$((n % 700))', '$(printf %0$((n * 37 % 400))d 0)');"
echo "SELECT count(*), max(id) FROM t WHERE name = 'n$((n * 7 % 700))';"
echo "SELECT a.name, count(*) FROM t a WHERE a.id > $((n - 100)) GROUP BY a.name ORDER BY 2 DESC LIMIT 5;"
echo "UPDATE t SET body = 'changed $n' WHERE id = $((n / 2));"
[ $((n % 50)) = 0 ] && echo "DELETE FROM t WHERE id < $((n - 500));"
sleep 0.2; done"""

_POSTGRES_MORE = """
echo "CREATE TEMP TABLE x$((n % 60)) AS SELECT a.id, string_agg(b.body, ',') s FROM t a JOIN t b ON b.id % 7 = a.id % 7 WHERE a.id > $((n - 40)) GROUP BY a.id;"
echo "SELECT length(string_agg(s, '')) FROM x$((n % 60)); DROP TABLE x$((n % 60));"
echo "PREPARE p$n (int) AS SELECT name, body FROM t WHERE id = \\$1 + $n; EXECUTE p$n(3); DEALLOCATE p$n;"
"""

_BUSY = (
    # Web servers and proxies.
    RealProgram(
        "nginx",
        _SITE + """; cat >nginx.conf <<END
daemon off; worker_processes 1; pid nginx.pid; error_log error.log; events { }
http { access_log access.log; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;
uwsgi_temp_path t4; scgi_temp_path t5; gzip on; gzip_types *;
proxy_cache_path cache keys_zone=one:1m; server { listen $PORT; root $DIR/www;
location /p { proxy_cache one; proxy_pass http://127.0.0.1:$ORIGIN; } } }
END
exec nginx -p $DIR -c $DIR/nginx.conf -g 'user root;'""",
        '"$LOAD" http $PORT 15 /a.txt /b.txt /%d.txt /p/%d /sub/ /missing',
        ("nginx-light",), "nginx: worker",
    ),
    RealProgram(
        "nginx-tls",
        _SITE + "; " + _CERTIFICATE + """; cat >nginx.conf <<END
daemon off; worker_processes 1; pid nginx.pid; error_log error.log; events { }
http { access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;
uwsgi_temp_path t4; scgi_temp_path t5; ssl_session_cache builtin:1000;
server { listen $PORT ssl; ssl_certificate $DIR/cert.pem; ssl_certificate_key $DIR/key.pem;
root $DIR/www; } }
END
exec nginx -p $DIR -c $DIR/nginx.conf -g 'user root;'""",
        '"$LOAD" https $PORT 10 /a.txt /b.txt /%d.txt',
        ("nginx-light",), "nginx: worker",
    ),
    RealProgram(
        "lighttpd",
        _SITE + """; cat >l.conf <<END
server.document-root = "$DIR/www"
server.port = $PORT
server.modules = ("mod_access", "mod_accesslog", "mod_dirlisting", "mod_indexfile")
accesslog.filename = "$DIR/access.log"
dir-listing.activate = "enable"
END
exec lighttpd -D -f l.conf""",
        _WEB, ("lighttpd",),
    ),
    RealProgram(
        "apache2",
        _SITE + """; cat >a.conf <<END
ServerRoot $DIR
Listen $PORT
ServerName localhost
PidFile $DIR/a.pid
DefaultRuntimeDir $DIR
User www-data
Group www-data
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule dir_module /usr/lib/apache2/modules/mod_dir.so
LoadModule deflate_module /usr/lib/apache2/modules/mod_deflate.so
LoadModule filter_module /usr/lib/apache2/modules/mod_filter.so
LoadModule mime_module /usr/lib/apache2/modules/mod_mime.so
TypesConfig /etc/mime.types
DocumentRoot $DIR/www
DirectoryIndex index.html
ErrorLog $DIR/error.log
CustomLog $DIR/access.log "%h %t %r"
StartServers 1
ServerLimit 1
ThreadsPerChild 8
MaxRequestWorkers 8
AddOutputFilterByType DEFLATE text/plain
END
exec apache2 -DFOREGROUND -f $DIR/a.conf""",
        _WEB, ("apache2",), "apache2",
    ),
    RealProgram(
        "python-http", _SITE + "; exec python3 -m http.server -b 127.0.0.1 -d www $PORT",
        _WEB, ("python3",), runtime=True,
    ),
    RealProgram(
        "haproxy",
        """cat >h.conf <<END
defaults
 mode http
 timeout client 30s
 timeout server 30s
 timeout connect 5s
cache one
 total-max-size 4
 max-age 60
frontend f
 bind 127.0.0.1:$PORT
 default_backend b
backend b
 http-request cache-use one
 http-response cache-store one
 server s 127.0.0.1:$ORIGIN
END
exec haproxy -db -f h.conf""",
        '"$LOAD" http $PORT 20 /a%d /b%d', ("haproxy",),
    ),
    RealProgram(
        "squid",
        """cat >s.conf <<END
http_port 127.0.0.1:$PORT
http_access allow all
cache_mem 8 MB
pid_filename $DIR/s.pid
access_log stdio:$DIR/access.log
cache_log $DIR/cache.log
coredump_dir $DIR
cache_effective_user proxy
pinger_enable off
acl all src 0.0.0.0/0
END
sed -i '/^acl all/d' s.conf; chmod 777 .
rm -f /dev/shm/tracelloccorpus-*; exec squid -N -n tracelloccorpus -f s.conf""",
        '"$LOAD" proxied $PORT 15 http://127.0.0.1:$ORIGIN/a%d http://127.0.0.1:$ORIGIN/b%d',
        ("squid",),
    ),
    RealProgram(
        "tinyproxy",
        """printf 'Port %s\\nListen 127.0.0.1\\nMaxClients 20\\nLogFile "%s/log"\\n' $PORT $DIR >t.conf
exec tinyproxy -d -c t.conf""",
        '"$LOAD" proxied $PORT 15 http://127.0.0.1:$ORIGIN/a%d', ("tinyproxy",),
    ),
    RealProgram(
        "privoxy",
        """cp -r /etc/privoxy conf; cat >p.conf <<END
confdir $DIR/conf
logdir $DIR
actionsfile match-all.action
actionsfile default.action
filterfile default.filter
listen-address 127.0.0.1:$PORT
END
exec privoxy --no-daemon p.conf""",
        '"$LOAD" proxied $PORT 10 http://127.0.0.1:$ORIGIN/a%d', ("privoxy",),
    ),
    RealProgram(
        "varnish",
        "mkdir v; exec varnishd -F -j none -n $DIR/v -a 127.0.0.1:$PORT -b 127.0.0.1:$ORIGIN -s default,8m -p thread_pool_min=10",
        '"$LOAD" http $PORT 15 /a%d /b%d', ("varnish",), "cache-main",
    ),
    RealProgram(
        "openssl", _CERTIFICATE + "; exec openssl s_server -quiet -www -accept $PORT -cert cert.pem -key key.pem",
        '"$LOAD" https $PORT 5 /a', ("openssl",),
    ),
    RealProgram(
        "stunnel",
        _CERTIFICATE + """; printf 'foreground = yes\\npid =\\n[a]\\naccept = 127.0.0.1:%s\\nconnect = 127.0.0.1:%s\\ncert = %s/both.pem\\n' $PORT $ORIGIN $DIR >s.conf
exec stunnel4 s.conf""",
        '"$LOAD" https $PORT 10 /a%d', ("stunnel4",),
    ),
    # Databases and stores.
    RealProgram(
        "redis", "exec redis-server --port $PORT --save '' --maxmemory 20mb --maxmemory-policy allkeys-lru",
        '"$LOAD" lines $PORT 30 "SET k%d %s EX 40" "GET k%d" "LPUSH l%d %s|LTRIM l%d 0 20" "HSET h%d f%d %s" "ZADD z %d m%d|ZREMRANGEBYRANK z 0 -300" "SORT l%d ALPHA" "INFO"',
        ("redis-server",),
    ),
    RealProgram(
        "memcached", "exec memcached -u root -p $PORT -l 127.0.0.1 -m 16 -t 2",
        '"$LOAD" lines $PORT 30 "set k%d 0 60 %l|%s" "get k%d" "delete k%d" "stats"',
        ("memcached",),
    ),
    RealProgram(
        "postgresql",
        """chown postgres .; B=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
runuser -u postgres -- $B/initdb -D $DIR/db >/dev/null
exec runuser -u postgres -- $B/postgres -D $DIR/db -p $PORT -k $DIR -c listen_addresses=''""",
        "sleep 2; (echo 'CREATE TABLE IF NOT EXISTS t (id serial PRIMARY KEY, name text, body text); CREATE INDEX i ON t (name);'; "
        + _SQL_STREAM.replace("sleep 0.2", _POSTGRES_MORE + "sleep 0.2")
        + ") | runuser -u postgres -- psql -q -h $DIR -p $PORT postgres",
        ("postgresql",), "postgres: postgres postgres",
    ),
    RealProgram(
        "mariadb",
        """chown mysql .; mariadb-install-db --user=mysql --datadir=$DIR/db --auth-root-authentication-method=normal --skip-test-db >/dev/null 2>&1
exec mariadbd --no-defaults --user=mysql --datadir=$DIR/db --socket=$DIR/s --skip-networking --pid-file=$DIR/pid --innodb-buffer-pool-size=16M""",
        "sleep 5; (echo 'CREATE DATABASE d; USE d; CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, name varchar(20), body text, KEY (name));'; "
        + _SQL_STREAM + ") | mariadb -u root -S $DIR/s",
        ("mariadb-server",),
    ),
    RealProgram(
        "sqlite3", "mkfifo in; exec sqlite3 db <in",
        "(echo 'PRAGMA journal_mode=wal; CREATE TABLE t (id integer PRIMARY KEY, name text, body text); CREATE INDEX i ON t (name);'; "
        + _SQL_STREAM + ") >in",
        ("sqlite3",),
    ),
    RealProgram(
        "slapd",
        """mkdir db; cat >s.conf <<END
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
suffix dc=a
rootdn cn=r,dc=a
rootpw p
directory $DIR/db
index cn eq
END
exec slapd -d 0 -h ldap://127.0.0.1:$PORT -f s.conf""",
        """sleep 2; A="-x -H ldap://127.0.0.1:$PORT -D cn=r,dc=a -w p"
printf 'dn: dc=a\\nobjectClass: dcObject\\nobjectClass: organization\\no: a\\ndc: a\\n\\n' | ldapadd $A
n=0; while :; do n=$((n + 1))
printf 'dn: cn=u%s,dc=a\\nobjectClass: person\\ncn: u%s\\nsn: %s\\n\\n' $n $n $n | ldapadd $A
ldapsearch $A -b dc=a "(cn=u$((n / 2)))"; ldapsearch $A -b dc=a -z 20 "(sn=*7*)" cn
[ $n -gt 60 ] && ldapdelete $A cn=u$((n - 60)),dc=a
sleep 0.3; done""",
        ("slapd", "ldap-utils"),
    ),
    RealProgram(
        "beanstalkd", "exec beanstalkd -l 127.0.0.1 -p $PORT",
        '"$LOAD" lines $PORT 30 "put 1 0 60 %l|%s" "reserve-with-timeout 0" "delete %d" "stats" "use t%d|put 1 0 5 %l|%s" "watch t%d|reserve-with-timeout 0" "peek-ready" "kick 10"',
        ("beanstalkd",),
    ),
    # Name servers.
    RealProgram(
        "named",
        """cat >n.conf <<END
options { directory "$DIR"; listen-on port $PORT { 127.0.0.1; }; listen-on-v6 { none; };
pid-file none; session-keyfile none; recursion yes; dnssec-validation no; max-cache-size 8M;
forward only; forwarders { 127.0.0.1 port $NAMES; }; empty-zones-enable no; };
zone "a.test" { type master; file "zone"; };
controls { };
END
printf '$TTL 60\\n@ SOA n n 1 60 60 60 60\\n@ NS n\\nn A 10.0.0.1\\n* A 10.0.0.2\\n' >zone
exec named -g -n 1 -c n.conf""",
        '"$LOAD" dns $PORT 20 h%d.a.test x%d.example m%d.b.example', ("bind9",),
    ),
    RealProgram(
        "unbound",
        """cat >u.conf <<END
server:
 interface: 127.0.0.1
 port: $PORT
 chroot: ""
 username: ""
 directory: "$DIR"
 pidfile: ""
 use-syslog: no
 do-not-query-localhost: no
 module-config: "iterator"
 num-threads: 1
forward-zone:
 name: "."
 forward-addr: 127.0.0.1@$NAMES
remote-control:
 control-enable: no
END
exec unbound -d -c u.conf""",
        '"$LOAD" dns $PORT 20 h%d.a.test x%d.example', ("unbound",),
    ),
    RealProgram(
        "dnsmasq", "exec dnsmasq -k -u root -C /dev/null -x $DIR/pid -p $PORT -a 127.0.0.1 -z -R -S 127.0.0.1#$NAMES -c 500",
        '"$LOAD" dns $PORT 25 h%d.a.test x%d.example', ("dnsmasq-base",),
    ),
    RealProgram(
        "nsd",
        """printf '$TTL 60\\n@ SOA n n 1 60 60 60 60\\n@ NS n\\nn A 10.0.0.1\\n* A 10.0.0.2\\n' >zone
cat >n.conf <<END
server:
 ip-address: 127.0.0.1
 port: $PORT
 username: ""
 chroot: ""
 zonesdir: "$DIR"
 database: ""
 pidfile: "$DIR/pid"
 xfrdfile: "$DIR/x"
 zonelistfile: "$DIR/z"
 xfrdir: "$DIR"
remote-control:
 control-enable: no
zone:
 name: a.test
 zonefile: zone
END
exec nsd -d -c n.conf""",
        '"$LOAD" dns $PORT 20 h%d.a.test', ("nsd",), "nsd: server 1",
    ),
    RealProgram(
        "pdns-recursor",
        "exec pdns_recursor --config-dir=$DIR --socket-dir=$DIR --daemon=no --local-address=127.0.0.1 --local-port=$PORT --forward-zones-recurse=.=127.0.0.1:$NAMES --threads=1 --dont-query= --dnssec=off --security-poll-suffix= --max-cache-entries=3000 --hint-file=no",
        '"$LOAD" dns $PORT 20 h%d.a.test x%d.example', ("pdns-recursor",),
    ),
    # Mail, messages, talk, files, logs.
    RealProgram(
        "exim4",
        """mkdir spool; cat >e.conf <<END
exim_user = root
exim_group = root
spool_directory = $DIR/spool
log_file_path = $DIR/%slog
never_users =
smtp_accept_max_nonmail = 100000000
acl_smtp_rcpt = ok
acl_smtp_mail = ok
begin acl
ok:
  accept condition = \\${if match{\\$sender_address}{u}{yes}{yes}}
begin routers
l:
  driver = accept
  transport = t
begin transports
t:
  driver = appendfile
  file = /dev/null
  user = nobody
END
exec exim4 -C $DIR/e.conf -bdf -oX 127.0.0.1.$PORT""",
        'sleep 1; "$LOAD" smtp $PORT 10', ("exim4-daemon-light",), "exim4",
    ),
    RealProgram(
        "dovecot",
        """cat >d.conf <<END
protocols = imap
base_dir = $DIR/run
log_path = $DIR/log
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
mail_location = maildir:$DIR/mail
mail_uid = nobody
mail_gid = nogroup
first_valid_uid = 1
service imap-login {
  inet_listener imap {
    port = $PORT
  }
  inet_listener imaps {
    port = 0
  }
}
passdb {
  driver = static
  args = password=p
}
userdb {
  driver = static
  args = uid=nobody gid=nogroup home=$DIR/mail
}
END
chmod 777 .; exec dovecot -F -c d.conf""",
        'sleep 1; "$LOAD" imap $PORT 1', ("dovecot-imapd",), "imap",
    ),
    RealProgram(
        "mosquitto",
        """printf 'listener %s 127.0.0.1\\nallow_anonymous true\\nuser root\\nmax_queued_messages 100\\n' $PORT >m.conf
exec mosquitto -c m.conf""",
        """sleep 1; mosquitto_sub -p $PORT -t '#' >/dev/null & mosquitto_sub -p $PORT -q 1 -i keeps -c -t 'a/+' >/dev/null &
(n=0; while :; do n=$((n + 1)); echo "message $n $(printf %0$((n * 37 % 300))d 0)"; sleep 0.05; done) | mosquitto_pub -p $PORT -q 1 -t a/b -l &
n=0; while :; do n=$((n + 1)); mosquitto_pub -p $PORT -r -q 1 -t r/$((n % 50)) -m "kept $n"; sleep 0.5; done""",
        ("mosquitto", "mosquitto-clients"),
    ),
    RealProgram(
        "ngircd",
        """cat >n.conf <<END
[Global]
Name = irc.here
Listen = 127.0.0.1
Ports = $PORT
ServerUID = nobody
ServerGID = nogroup
[Limits]
MaxConnectionsIP = 0
[Options]
Ident = no
DNS = no
PAM = no
END
exec ngircd -n -f $DIR/n.conf""",
        '"$LOAD" irc $PORT 10', ("ngircd",),
    ),
    RealProgram(
        "prosody",
        """cat >p.lua <<END
run_as_root = true
interfaces = { "127.0.0.1" }
c2s_ports = { $PORT }
s2s_ports = { }
data_path = "$DIR"
pidfile = "$DIR/pid"
modules_enabled = { "saslauth"; "ping"; "disco"; }
authentication = "anonymous"
c2s_require_encryption = false
allow_unencrypted_plain_auth = true
log = { error = "$DIR/log" }
VirtualHost "localhost"
END
exec prosody -F --config $DIR/p.lua""",
        """"$LOAD" lines $PORT 5 "<stream:stream to='localhost' xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' version='1.0'>" "<iq type='get' id='%d'><ping xmlns='urn:xmpp:ping'/></iq>" """,
        ("prosody",), runtime=True,
    ),
    RealProgram(
        "rsyslog",
        """printf 'module(load="imudp")\\ninput(type="imudp" address="127.0.0.1" port="%s")\\ntemplate(name="f" type="string" string="%s/%%HOSTNAME%%.log")\\n*.* ?f\\n' $PORT $DIR >r.conf
exec rsyslogd -n -i $DIR/pid -f r.conf""",
        '"$LOAD" datagrams $PORT 40 "<14>Jan  1 00:00:00 h a[%d]: %s" "<%d>Jan  1 00:00:00 i b: c %s"',
        ("rsyslog",),
    ),
    RealProgram(
        "snmpd",
        "printf 'rocommunity public 127.0.0.1\\n' >s.conf; exec snmpd -f -Lo -C -c s.conf -p $DIR/pid udp:127.0.0.1:$PORT",
        "while :; do snmpwalk -v2c -c public 127.0.0.1:$PORT system; snmpwalk -v2c -c public 127.0.0.1:$PORT 1.3.6.1.2.1.25.2; sleep 2; done",
        ("snmpd", "snmp"),
    ),
    RealProgram(
        "proftpd",
        """mkdir -p files; for n in 1 2 3 4; do echo $n >files/$n.txt; done; head -c 9000 /dev/zero >files/a.txt; chmod -R 755 . ; cat >p.conf <<END
ServerType standalone
ServerName here
DefaultServer on
Port $PORT
DefaultAddress 127.0.0.1
UseReverseDNS off
ScoreboardFile $DIR/score
PidFile $DIR/pid
DelayEngine off
UseFtpUsers off
User nobody
Group nogroup
TransferLog none
WtmpLog off
<Anonymous $DIR/files>
 User nobody
 Group nogroup
 UserAlias anonymous nobody
 RequireValidShell off
</Anonymous>
END
exec proftpd -n -c $DIR/p.conf""",
        'sleep 1; "$LOAD" ftp $PORT 4', ("proftpd-core",), "proftpd",
    ),
    RealProgram(
        "dbus-daemon", "exec dbus-daemon --session --nofork --address=unix:path=$DIR/bus",
        "sleep 1; export DBUS_SESSION_BUS_ADDRESS=unix:path=$DIR/bus; while :; do for m in ListNames GetId ListActivatableNames; do dbus-send --session --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.$m; done; sleep 1; done",
        ("dbus",),
    ),
    # Programs that are fed.
    RealProgram(
        "git",
        """git init -q r; cd r; for n in $(seq 40); do for f in $(seq 10); do seq $((n * f)) >$f; done; git add .; git -c user.name=a -c user.email=a@b commit -qm $n; done
git rev-list --objects --all | cut -d' ' -f1 >../ids; cd ..; mkfifo in; exec git -C r cat-file --batch <in""",
        "sleep 1; while [ ! -p in ]; do sleep 1; done; while :; do shuf -n 5 ids; sleep 0.3; done >in",
        ("git",),
    ),
    RealProgram(
        "jq", "mkfifo in; exec jq -c --unbuffered 'group_by(.a % 7) | map({k: (.[0].a | tostring), n: length, s: (map(.b | ascii_upcase) | join(\",\"))})' <in",
        """n=0; while :; do n=$((n + 1)); echo "[$(for k in $(seq 1 $((n % 13 + 3))); do printf '{"a":%d,"b":"t%d"},' $((n * k)) $k; done)null]" | sed 's/,null//'; sleep 0.2; done >in""",
        ("jq",),
    ),
    RealProgram(
        "bc", "mkfifo in; exec bc -lq <in",
        'n=0; while :; do n=$((n + 1)); echo "scale=$((n % 12)); x = sqrt($n) * e($((n % 9))); a[$((n % 50))] = x; s((x)) / ($n + 1)"; sleep 0.5; done >in',
        ("bc",),
    ),
    RealProgram(
        "gawk",
        """mkfifo in; exec gawk '{ c[$1 % 500]++; last[$1 % 300] = $2 $3; if (NR % 40 == 0) { n = asorti(c, o); s = ""; for (k = 1; k < n; k++) s = s o[k]; print length(s), toupper(last[o[1]]) } if (NR % 500 == 0) delete c }' <in""",
        'n=0; while :; do n=$((n + 1)); echo "$((n * 7919)) text$n more$((n % 10))"; sleep 0.05; done >in',
        ("gawk",),
    ),
    # Language runtimes.
    RealProgram(
        "ruby",
        """cat >s.rb <<'END'
require 'socket'; require 'json'; require 'erb'
server = TCPServer.new('127.0.0.1', ENV['PORT'].to_i); recent = {}
page = ERB.new('<ul><% rows.each do |r| %><li><%= r %></li><% end %></ul>')
loop do
  Thread.new(server.accept) do |c|
    while (line = c.gets)
      path = line.split[1].to_s; length = 0
      while (h = c.gets) && h != "\\r\\n" do length = h.split[1].to_i if h =~ /^content-length/i end
      c.read(length) if length > 0
      rows = (1..40).map { |n| "row #{n} of #{path} " * 3 }
      recent[path] = JSON.generate(rows.map { |r| { r => r.size } }); recent.shift if recent.size > 200
      body = page.result(binding) + recent[path]
      c.write "HTTP/1.1 200 OK\\r\\nContent-Length: #{body.bytesize}\\r\\n\\r\\n#{body}"
    end rescue nil
    c.close rescue nil
  end
end
END
exec ruby s.rb""",
        '"$LOAD" http $PORT 6 /a%d /b%d', ("ruby",), runtime=True,
    ),
    RealProgram(
        "node",
        """cat >s.js <<'END'
const http = require('http'), crypto = require('crypto'), zlib = require('zlib'); const recent = new Map();
http.createServer((q, a) => { const parts = []; q.on('data', d => parts.push(d)); q.on('end', () => {
  const rows = []; for (let n = 0; n < 60; n++) rows.push({ n, path: q.url, text: 'x'.repeat(n) });
  const b = Buffer.alloc(20000, JSON.stringify(rows)); const h = crypto.createHash('sha1').update(b).digest('hex');
  recent.set(q.url, b); if (recent.size > 100) recent.delete(recent.keys().next().value);
  zlib.gzip(b, (e, z) => a.end(h + z.length)); }); }).listen(+process.env.PORT, '127.0.0.1');
END
exec node s.js""",
        '"$LOAD" http $PORT 6 /a%d /b%d', ("nodejs",), runtime=True,
    ),
    RealProgram(
        "flask",
        """cat >s.py <<'END'
import os
from flask import Flask, jsonify, request, render_template_string
app = Flask(__name__); recent = {}
@app.route("/<path:path>", methods=["GET", "POST"])
def page(path):
    rows = [{"n": n, "text": path * 5 + "x" * n * 20} for n in range(40)]
    recent[path] = bytearray(3000)
    if len(recent) > 150: recent.pop(next(iter(recent)))
    if path.startswith("b"): return jsonify(rows)
    return render_template_string("{% for r in rows %}<li>{{ r.text }}</li>{% endfor %}", rows=rows)
app.run("127.0.0.1", int(os.environ["PORT"]))
END
exec /usr/bin/python3 s.py""",
        '"$LOAD" http $PORT 5 /a%d /b%d', ("python3-flask",), runtime=True,
    ),
    RealProgram(
        "php",
        """cat >i.php <<'END'
<?php $rows = []; for ($n = 0; $n < 60; $n++) $rows["k$n"] = str_repeat($_SERVER['REQUEST_URI'], $n);
$_SESSION = $rows; echo json_encode($rows), preg_replace('/a+/', 'b', implode(',', $rows)), md5(serialize($rows));
END
exec php -S 127.0.0.1:$PORT i.php""",
        '"$LOAD" http $PORT 8 /a%d /b%d', ("php-cli",), runtime=True,
    ),
    RealProgram(
        "perl",
        """cat >s.pl <<'END'
use IO::Socket::INET; $SIG{PIPE} = 'IGNORE'; my %recent; my @order;
my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ENV{PORT}, Listen => 20, ReuseAddr => 1) or die;
while (my $c = $s->accept) {
  while (defined(my $l = <$c>)) {
    my (undef, $p) = split ' ', $l; my $n = 0;
    while (defined(my $h = <$c>)) { $n = $1 if $h =~ /^content-length: (\\d+)/i; last if $h eq "\\r\\n" }
    read $c, my $skip, $n if $n;
    my %r = map { ("key$_" => $p x ($_ % 20)) } 1 .. 60; my $b = join '', map { "$_=$r{$_}<br>" } sort keys %r;
    unless ($recent{$p}) { push @order, $p } $recent{$p} = { body => $b, parts => [split /=/, $b] };
    delete $recent{shift @order} if @order > 100;
    print $c "HTTP/1.1 200 OK\\r\\nContent-Length: " . length($b) . "\\r\\n\\r\\n$b";
  } close $c;
}
END
exec perl s.pl""",
        '"$LOAD" http $PORT 3 /a%d /b%d', ("perl",),
    ),
    RealProgram(
        "java",
        """cat >S.java <<'END'
import com.sun.net.httpserver.*; import java.net.*; import java.util.*; import java.util.zip.*; import java.io.*;
public class S { public static void main(String[] a) throws Exception {
  HttpServer s = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))), 0);
  LinkedHashMap<String, byte[]> recent = new LinkedHashMap<>();
  s.createContext("/", q -> { q.getRequestBody().readAllBytes(); StringBuilder b = new StringBuilder();
    for (int n = 0; n < 60; n++) b.append(q.getRequestURI()).append(n);
    ByteArrayOutputStream o = new ByteArrayOutputStream(); try (GZIPOutputStream z = new GZIPOutputStream(o)) { z.write(b.toString().getBytes()); }
    byte[] r = o.toByteArray(); recent.put(q.getRequestURI().toString(), r); if (recent.size() > 100) recent.remove(recent.keySet().iterator().next());
    q.sendResponseHeaders(200, r.length); q.getResponseBody().write(r); q.close(); }); s.start(); } }
END
javac S.java; exec java -Xmx64m -cp . S""",
        '"$LOAD" http $PORT 6 /a%d /b%d', ("openjdk-17-jdk-headless",), runtime=True,
    ),
    RealProgram(
        "lua",
        """mkfifo in; cat >s.lua <<'END'
local recent, order = {}, {}
for l in io.lines() do
  local k = l:match('^%d+'); local r = {}; for n = 1, 60 do r[n] = { n = n, text = k .. ':' .. n } end
  table.sort(r, function(a, b) return a.text < b.text end)
  if not recent[k] then order[#order + 1] = k end; recent[k] = { l:rep(10), r }
  if #order > 100 then recent[table.remove(order, 1)] = nil end
end
END
exec lua5.4 s.lua <in""",
        'n=0; while :; do n=$((n + 1)); echo "$((n * 7919 % 500)) text"; sleep 0.2; done >in',
        ("lua5.4",), runtime=True,
    ),
    # Desktop programs.
    RealProgram(
        "xvfb", "exec Xvfb :$((PORT % 1000)) -screen 0 800x600x24",
        """export DISPLAY=:$((PORT % 1000)) NO_AT_BRIDGE=1 HOME=$DIR; while :; do timeout 100 galculator & sleep 1
for n in $(seq 14); do xdotool mousemove $((n * 37 % 400)) $((n * 53 % 300)); xdotool key $((n % 10)) plus; sleep 8; done; done""",
        ("galculator", "xvfb", "xdotool"),
    ),
    RealProgram(
        "galculator",
        """Xvfb :$((PORT % 1000)) -screen 0 800x600x24 >/dev/null 2>&1 & sleep 2; export DISPLAY=:$((PORT % 1000)) NO_AT_BRIDGE=1 HOME=$DIR
exec galculator""",
        """sleep 4; export DISPLAY=:$((PORT % 1000)); n=0; while :; do n=$((n + 1))
xdotool mousemove $((n * 37 % 400)) $((n * 53 % 300)); xdotool key $((n % 10)) plus $((n * 7 % 10)) equal; [ $((n % 20)) = 0 ] && xdotool key Escape; sleep 6; done""",
        ("galculator", "xvfb", "xdotool"),
    ),
)  # fmt: skip

_ALSO_IDLE = {
    "nginx", "lighttpd", "apache2", "haproxy", "tinyproxy", "stunnel", "redis", "memcached", "slapd",
    "beanstalkd", "exim4", "dovecot", "mosquitto", "ngircd", "proftpd",
}  # fmt: skip
# Under steady, light load; servers without requests.
PROGRAMS = (
    *_BUSY,
    *(
        replace(each, name=f"{each.name}-idle", load='"$LOAD" idle $PORT 0.2')
        for each in _BUSY
        if each.name in _ALSO_IDLE
    ),
)
