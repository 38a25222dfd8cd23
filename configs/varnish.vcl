# The Varnish of `asyncli lab varnish`. It answers requests itself, and stores nothing. Its timeouts are parameters
# (asyncli/lab/one_process.py): timeout_idle closes idle connections, by default after 5 s.
vcl 4.1;

backend none none;

sub vcl_recv {
    return (synth(200));
}

sub vcl_synth {
    set resp.body = {"ok
"};
    return (deliver);
}
