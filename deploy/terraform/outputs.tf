output "state" {
  description = "What SERVO_STATE is on the machines of those who run pipelines."
  value       = "gs://${google_storage_bucket.state.name}"
}

output "urls" {
  description = "Where the services are."
  value       = local.url
}

output "workers" {
  description = "Where the worker of each worker_queue is."
  value       = local.worker_url
}

output "accounts" {
  description = "As whom each of them runs and calls."
  value       = local.email
}
