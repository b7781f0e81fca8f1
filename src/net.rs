//! Where HTTP clients come from. reqwest's own builder panics without a provider of cryptography,
//! and reads the system's certificates for every client, even for one that only talks to a socket.

use std::net::IpAddr;

use reqwest::{Client, ClientBuilder, Url};

/// Speaks plain HTTP: to sockets, and to servers on this machine or in its network.
pub fn plain() -> ClientBuilder {
    builder().tls_certs_only([])
}

/// Speaks TLS as well, and trusts whom the system trusts.
pub fn public() -> ClientBuilder {
    builder()
}

/// Whether an address leads to this machine, as far as it says.
pub fn is_loopback(address: &Url) -> bool {
    let Some(host) = address.host_str() else { return false };
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[expect(clippy::disallowed_methods, reason = "this is the one place")]
fn builder() -> ClientBuilder {
    // Refused when it was done before, which is just as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
}
