//! Ssh key pairs of clusters.

use anyhow::Context as _;
use controller_api::agent::ClusterKey;
use ssh_key::{Algorithm, LineEnding, PrivateKey};

/// A new Ed25519 key pair in OpenSSH format.
pub fn generate() -> anyhow::Result<ClusterKey> {
    let mut key = PrivateKey::random(&mut ssh_key::rand_core::OsRng, Algorithm::Ed25519)
        .context("the operating system provides no random numbers")?;
    key.set_comment("heddle");
    Ok(ClusterKey {
        public: key.public_key().to_openssh()?,
        private: key.to_openssh(LineEnding::LF)?.to_string(),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_are_in_openssh_format_and_do_not_print() {
        let key = super::generate().unwrap();
        assert!(key.public.starts_with("ssh-ed25519 ") && !key.public.contains('\n'));
        assert!(key.private.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----\n"));
        assert!(!format!("{key:?}").contains("PRIVATE"));
        assert_ne!(key.public, super::generate().unwrap().public);
    }
}
