output "state" {
  description = "The value of SERVO_STATE on machines that run pipelines."
  value       = "gs://${google_storage_bucket.state.name}"
}

output "urls" {
  description = "The URLs of the services."
  value       = local.url
}

output "workers" {
  description = "The URL of the worker of each worker_queue."
  value       = local.worker_url
}

output "accounts" {
  description = "The service account of each service and worker."
  value       = local.email
}
