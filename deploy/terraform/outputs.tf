output "state" {
  description = "What SERVO_STATE is on the machines of those who run pipelines."
  value       = "gs://${google_storage_bucket.state.name}"
}

output "urls" {
  description = "Where the services and the worker are."
  value       = local.url
}

output "accounts" {
  description = "As whom each of them runs and calls."
  value       = local.email
}
