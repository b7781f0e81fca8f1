//! The factory for HTTP clients; clippy forbids reqwest's own constructors. Without a crypto provider
//! those panic, and they load the system's certificates for every client, even for one that only talks
//! to a Unix socket.

use std::net::IpAddr;

use reqwest::{Client, ClientBuilder, Url};

/// For plain HTTP only, to Unix sockets and servers on this machine or its network. Loads no
/// certificates, so every TLS connection fails.
pub fn plain() -> ClientBuilder {
    builder().tls_certs_only([])
}

/// For TLS as well, with the system's certificate store.
pub fn public() -> ClientBuilder {
    builder()
}

/// Whether the address names this machine. Names other than `localhost` are not resolved.
pub fn is_loopback(address: &Url) -> bool {
    let Some(host) = address.host_str() else { return false };
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// The message of the innermost cause: the outer ones say that something failed, not what.
pub fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn builder() -> ClientBuilder {
    // An error means that a provider is installed already, which is all we want.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
}
