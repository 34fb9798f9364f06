//! Connections that leave HTTP after an upgrade.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::error::ApiError;
use super::lease::Lease;
use crate::server::ConnectionSlot;

/// A request to upgrade its connection to one protocol.
pub struct Upgrade {
    protocol: &'static str,
    upgraded: OnUpgrade,
    /// The connection stays counted while the stream lasts.
    slot: Option<Arc<ConnectionSlot>>,
}

impl Upgrade {
    /// Fails with 426 unless the request asks for `protocol`.
    pub fn of(request: &mut Request, protocol: &'static str) -> Result<Self, ApiError> {
        if request.headers().get(header::UPGRADE) != Some(&HeaderValue::from_static(protocol)) {
            return Err(ApiError::new(
                StatusCode::UPGRADE_REQUIRED,
                "upgrade-required",
                "this path requires a protocol upgrade",
            )
            .hint(format!("send Connection: upgrade and Upgrade: {protocol}")));
        }
        let slot = request.extensions_mut().remove();
        Ok(Self { protocol, upgraded: hyper::upgrade::on(request), slot })
    }

    /// Answers with 101, then copies bytes between the connection and `far` until either side or the lease ends.
    pub fn join(
        self,
        mut far: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        mut lease: Lease,
    ) -> Response {
        let Self { protocol, upgraded, slot } = self;
        tokio::spawn(async move {
            let _slot = slot;
            match upgraded.await {
                Ok(near) => {
                    let mut near = TokioIo::new(near);
                    tokio::select! {
                        // Either side may end it at any time.
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        () = lease.ended() => tracing::debug!(protocol, "stream closed: its token is no longer valid"),
                    }
                }
                Err(error) => tracing::debug!(protocol, "the upgrade of a connection failed: {error}"),
            }
        });
        let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, protocol)];
        (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
    }
}
