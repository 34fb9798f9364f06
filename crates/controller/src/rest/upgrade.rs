//! Requests that become streams.

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

/// A request that is to become a stream of one protocol.
pub struct Upgrade {
    protocol: &'static str,
    upgraded: OnUpgrade,
    /// The connection counts for as long as the stream lasts.
    slot: Option<Arc<ConnectionSlot>>,
}

impl Upgrade {
    /// Refused unless the request asks for just that.
    pub fn of(request: &mut Request, protocol: &'static str) -> Result<Self, ApiError> {
        if request.headers().get(header::UPGRADE) != Some(&HeaderValue::from_static(protocol)) {
            return Err(ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade-required", "this is a stream")
                .hint(format!("send Connection: upgrade and Upgrade: {protocol}")));
        }
        let slot = request.extensions_mut().remove();
        Ok(Self { protocol, upgraded: hyper::upgrade::on(request), slot })
    }

    /// The answer, after which bytes go to another stream and back until either ends, or the lease does.
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
                        () = lease.ended() => tracing::debug!(protocol, "the token of a stream is not valid any more"),
                    }
                }
                Err(error) => tracing::debug!(protocol, "a stream was not taken up: {error}"),
            }
        });
        let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, protocol)];
        (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
    }
}
